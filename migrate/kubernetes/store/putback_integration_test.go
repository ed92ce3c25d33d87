//go:build integration

package store_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// whole is one of two operators of a cluster.
type whole struct {
	*controller.Service
	*controller.Incarnations
}

// The cluster's etcd is put back from a copy while two operators serve it. Each refuses claims from the moment at which
// the order is given at one of them, and the store says a lower number than before. The record comes out as the node
// says that runs the VM, with a generation above all that were given.
func TestPutBack(t *testing.T) {
	_, again := open(t, nil)
	clock := time.Now()
	now := func() time.Time { return clock }
	var both []whole
	for range 2 {
		st := again()
		both = append(both, whole{controller.New(st), controller.NewIncarnations(st, st, "c1", func() []string {
			return []string{"a", "b", "c1"}
		}, now)})
	}
	rec, err := both[0].Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm("a")})
	if err == nil {
		rec, err = both[0].Own(t.Context(), &nodev1.OwnRequest{Vm: vm("a"), Node: "a", Uid: rec.GetUid()})
	}
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if err := server.Copy(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if _, err = both[1].Disown(t.Context(), &nodev1.DisownRequest{Vm: vm("a"), Node: "a",
		Generation: rec.GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	onB, err := both[0].Own(t.Context(), &nodev1.OwnRequest{Vm: vm("a"), Node: "b", Generation: rec.GetGeneration() + 1})
	if err != nil {
		t.Fatal(err)
	}
	_, before, err := again().Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.PutBack(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if _, after, err := again().Revision(t.Context()); err != nil || after >= before {
		t.Errorf("the store says %d after %d: %v", after, before, err)
	}
	if _, err := both[0].Restore(t.Context(), &nodev1.RestoreRequest{}); err != nil {
		t.Fatal(err)
	}
	for i, c := range both {
		_, err := c.Own(t.Context(), &nodev1.OwnRequest{Vm: vm("a"), Node: "a", Generation: rec.GetGeneration()})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "a, b, c1") {
			t.Fatalf("operator %d: %v", i, err)
		}
	}
	held := &nodev1.Held{Vm: vm("a"), Uid: onB.GetUid(), Generation: onB.GetGeneration(), Phase: "OWN"}
	for i, req := range []*nodev1.ReportRequest{{Node: "a"}, {Node: "b", Held: []*nodev1.Held{held}}, {Node: "c1"}} {
		if _, err := both[i%2].Report(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	clock = clock.Add(controller.SettleDelay)
	for settled := false; !settled; {
		if err := both[0].Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		state, err := both[1].State(t.Context(), &nodev1.StateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		settled = !state.GetWaiting()
	}
	got, err := both[1].Get(t.Context(), &nodev1.GetRequest{Vm: vm("a")})
	if err != nil || got.GetOwner().GetNode() != "b" || got.GetGeneration() != onB.GetGeneration() {
		t.Fatalf("%v, %v", got, err)
	}
	next, err := both[1].Own(t.Context(), &nodev1.OwnRequest{Vm: vm("a"), Node: "b", Generation: got.GetGeneration()})
	if err != nil || !record.Follows(next, got.GetGeneration()) ||
		next.GetGeneration() <= record.Floor(next.GetIncarnation()) {
		t.Errorf("%v, %v", next, err)
	}
}
