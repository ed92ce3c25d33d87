package controller_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// reads is a store that takes its time to load a record.
type reads struct{ store.Store }

func (r reads) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	time.Sleep(time.Second)
	return r.Store.Load(ctx, vm, asked)
}

// A node that sends one report after the other has one looked at, and the others refused for now. The reports of
// other nodes are taken meanwhile, and its own after that.
func TestOneReportOfANodeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory()
		whole := controller.NewIncarnations(reads{memory}, memory, "c", func() []string { return nil }, nil)
		report := func(node string) error {
			_, err := whole.Report(controller.WithPeer(t.Context(), node),
				&nodev1.ReportRequest{Node: node, Held: []*nodev1.Held{{Vm: web, Uid: "u", Phase: "OWN"}}})
			return err
		}
		first := make(chan error, 1)
		go func() { first <- report("a") }()
		synctest.Wait()
		if err := report("a"); !errdefs.IsUnavailable(err) {
			t.Errorf("a second one: %v", err)
		}
		if err := report("b"); err != nil {
			t.Errorf("of another node: %v", err)
		}
		if err := <-first; err != nil {
			t.Errorf("the first: %v", err)
		}
		if err := report("a"); err != nil {
			t.Errorf("after the first: %v", err)
		}
	})
}
