package controller_test

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A long repository, or a name that a build before took, keeps no node from reporting: what it holds is settled.
func TestAReportIsNotRefusedForOneVM(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	old := &nodev1.Record{Vm: vmOf("old name"), Uid: "old", Owner: &nodev1.Owner{Node: "a"}, Generation: 3}
	if _, err := r.memory.Apply(t.Context(), old.GetVm(), 0, transition.Change{Record: old}); err != nil {
		t.Fatal(err)
	}
	long := held(onA, "SENDING")
	long.Repository = "registry.example/" + strings.Repeat("p", 280) + "/" + onA.GetUid()
	report := func(held ...*nodev1.Held) *nodev1.StoreState {
		t.Helper()
		req := &nodev1.ReportRequest{Node: "a", Held: held}
		if err := controller.Sanitize(req); err != nil {
			t.Fatal(err)
		}
		s, err := r.whole.Report(r.as("a"), req)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	report(long, held(old, "OWN"))
	r.restore()
	report(long, held(old, "OWN"))
	r.report("b")
	r.report("c")
	if s := r.settle(); s.GetWaiting() {
		t.Fatalf("the store waits: %v", s)
	}
	for _, rec := range []*nodev1.Record{onA, old} {
		if now := r.get(rec.GetVm()); now.GetOwner().GetNode() != "a" {
			t.Errorf("VM %s: %v", rec.GetVm().GetId(), now)
		}
	}
	if all, err := r.records.List(t.Context(), &nodev1.ListRequest{}); err != nil || len(all.GetRecords()) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	long.Phase = strings.Repeat("x", 300) // which no node says
	if _, err := r.whole.Report(r.as("a"), &nodev1.ReportRequest{Node: "a",
		Held: []*nodev1.Held{long}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a phase of 300 bytes: %v", err)
	}
}

// shortNames is a store that has no key for a long name, as the one in Kubernetes.
type shortNames struct{ *storetest.Memory }

func (s shortNames) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	if len(vm.GetId()) > 150 {
		return transition.State{}, errdefs.ErrInvalidArgument
	}
	return s.Memory.Load(ctx, vm, asked)
}

// A name for which the store has no key keeps no record closed.
func TestANameWithoutAKey(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	st := shortNames{r.memory}
	r.whole = controller.NewIncarnations(st, r.memory, "c", func() []string { return r.nodes }, r.now)
	all := []*nodev1.Held{held(onA, "OWN")}
	all = append(all, &nodev1.Held{Vm: vmOf(strings.Repeat("x", 200)), Uid: uuid.NewString(), Generation: 1, Phase: "OWN"})
	r.report("a", all...)
	r.restore()
	r.report("a", all...)
	r.report("b")
	r.report("c")
	if s := r.settle(); s.GetWaiting() || s.GetConflicts() != 1 {
		t.Errorf("%v", s)
	}
}
