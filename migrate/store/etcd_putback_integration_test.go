//go:build integration

package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// whole is one of two controllers of an etcd.
type whole struct {
	*controller.Service
	*controller.Incarnations
}

func (m *member) putBack(copied string) {
	m.t.Helper()
	data := filepath.Join(m.dir, "data")
	m.kill()
	if err := os.RemoveAll(data); err != nil {
		m.t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(copied)); err != nil {
		m.t.Fatal(err)
	}
	m.start()
}

// A real etcd is put back from a copy while two controllers serve it. Each of them refuses
// claims from the moment at which the order is given at one of them, also those that it had
// begun. Both settle at once, and the record comes out as the node says that runs the VM.
func TestEtcdPutBack(t *testing.T) {
	members := newCluster(t, 1)
	clock := time.Now()
	now := func() time.Time { return clock }
	open := func() (all []whole) {
		for range 2 {
			st := connect(t, "/p/", members)
			t.Cleanup(func() { _ = st.Close() })
			all = append(all, whole{controller.New(st), controller.NewIncarnations(st, st, "c1", func() []string {
				return []string{"a", "b", "c1"}
			}, now)})
		}
		return all
	}
	both := open()
	vm := &nodev1.VM{Namespace: "ns", Id: "a"}
	rec, err := both[0].Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm})
	if err == nil {
		rec, err = both[0].Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "a", Uid: rec.GetUid()})
	}
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	members[0].kill()
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(members[0].dir, "data"))); err != nil {
		t.Fatal(err)
	}
	members[0].start()
	both = open()
	if _, err = both[1].Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "a",
		Generation: rec.GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	onB, err := both[0].Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "b", Generation: rec.GetGeneration() + 1})
	if err != nil {
		t.Fatal(err)
	}
	members[0].putBack(copied)
	both = open()
	if _, err := both[0].Restore(t.Context(), &nodev1.RestoreRequest{}); err != nil {
		t.Fatal(err)
	}
	for i, c := range both {
		_, err := c.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "a", Generation: rec.GetGeneration()})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "a, b, c1") {
			t.Fatalf("controller %d: %v", i, err)
		}
	}
	held := &nodev1.Held{Vm: vm, Uid: onB.GetUid(), Generation: onB.GetGeneration(), Phase: "OWN"}
	for i, req := range []*nodev1.ReportRequest{{Node: "a"}, {Node: "b", Held: []*nodev1.Held{held}}, {Node: "c1"}} {
		if _, err := both[i%2].Report(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	clock = clock.Add(controller.SettleDelay)
	for settled := false; !settled; {
		var wg sync.WaitGroup
		for _, c := range both {
			wg.Go(func() {
				if err := c.Maintain(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		state, err := both[0].State(t.Context(), &nodev1.StateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		settled = !state.GetWaiting()
	}
	got, err := both[1].Get(t.Context(), &nodev1.GetRequest{Vm: vm})
	if err != nil || got.GetOwner().GetNode() != "b" || got.GetGeneration() != onB.GetGeneration() {
		t.Fatalf("%v, %v", got, err)
	}
	next, err := both[1].Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "b", Generation: got.GetGeneration()})
	if err != nil || !record.Follows(next, got.GetGeneration()) ||
		next.GetGeneration() <= record.Floor(next.GetIncarnation()) {
		t.Errorf("%v, %v", next, err)
	}
}

var _ store.Incarnations = (*store.Etcd)(nil)
