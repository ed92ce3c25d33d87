package moves

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// keeper is a node that keeps a log.
type keeper struct {
	nodev1.PeerService
	asked []*nodev1.LogRequest
}

func (k *keeper) Log(_ context.Context, req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	k.asked = append(k.asked, req)
	return &nodev1.LogResponse{End: true}, nil
}

// The node that has a VM reads what it has written where it ran before. The VM is named by the record's UID, whatever
// the caller says, and a node where it has not run is not asked. The node that had it before may not read on.
func TestLog(t *testing.T) {
	a := newArena(t, controller.Policy{Repositories: []string{"reg/vms"}})
	k := &keeper{}
	a.peers = map[string]nodev1.PeerService{"victim": k, "third": k}
	wake := &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "third",
		Digest: dig("sleeps"), Generation: 2}
	records := controller.New(a.store)
	if _, err := records.Open(t.Context(), &nodev1.OpenRequest{Vm: named("sleeps"), Operation: wake}); err != nil {
		t.Fatal(err)
	}
	if _, err := records.Advance(t.Context(), &nodev1.AdvanceRequest{Vm: named("sleeps"), Operation: "w", Attempt: 1,
		Generation: 2, Phase: nodev1.Phase_PHASE_SWITCHING}); err != nil {
		t.Fatal(err)
	}
	rec, err := records.Commit(t.Context(), &nodev1.CommitRequest{Vm: named("sleeps"), Operation: "w", Attempt: 1,
		Generation: 2, Owner: &nodev1.Owner{Node: "third"}})
	if err != nil || len(rec.GetRanOn()) != 2 || rec.GetRanOn()[0] != "victim" || rec.GetRanOn()[1] != "third" {
		t.Fatalf("%v, %v", rec.GetRanOn(), err)
	}
	for _, o := range []struct {
		by, of string
		want   func(error) bool
	}{
		{"third", "victim", func(err error) bool { return err == nil }}, {"victim", "victim", errdefs.IsPermissionDenied},
		{"victim", "third", errdefs.IsPermissionDenied}, {"rogue", "victim", errdefs.IsPermissionDenied},
		{"third", "rogue", errdefs.IsNotFound}, {"third", "", errdefs.IsNotFound},
	} {
		tail := int64(3)
		_, err := a.moves.Log(controller.WithPeer(t.Context(), o.by), &nodev1.LogRequest{Vm: named("sleeps"), Node: o.of,
			Uid: a.uids["run"], Tail: &tail})
		if !o.want(err) {
			t.Errorf("%s reads the part of %q: %v", o.by, o.of, err)
		}
	}
	if len(k.asked) != 1 || k.asked[0].GetUid() != a.uids["sleeps"] || k.asked[0].GetTail() != 3 {
		t.Errorf("asked %v", k.asked)
	}
}
