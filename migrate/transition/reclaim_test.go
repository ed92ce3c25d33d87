package transition_test

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A live move that loses the VM leaves it with its source, which has it back by one transition: a new generation,
// above that of the destination (I2).
func TestReclaim(t *testing.T) {
	live := func() transition.State {
		s := under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_COMMITTED)
		s.Named.Digest, s.Named.CommittedUnixNano = record.StreamPrefix+"aa", 55
		return s
	}
	kept := &nodev1.Kept{Node: "n1", Destination: "n2", Operation: "op", Attempt: 2, Generation: gen,
		Digest: record.StreamPrefix + "aa", StoppedUnixNano: 55}
	lose := func(s transition.State) transition.State {
		c, err := transition.Finish(s, &nodev1.FinishRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen,
			Phase: nodev1.Phase_PHASE_LOST_AT_DEST}, now)
		if err != nil {
			t.Fatal(err)
		}
		return transition.State{Record: c.Record}
	}
	order := func(change func(*nodev1.ReclaimRequest)) *nodev1.ReclaimRequest {
		req := &nodev1.ReclaimRequest{Vm: vm, Operation: "op", Generation: gen + 1, LostNode: "n2"}
		change(req)
		return req
	}
	same := func(*nodev1.ReclaimRequest) {}
	if s := lose(live()); !proto.Equal(s.Record.GetKept(), kept) || !record.IsLost(s.Record) {
		t.Errorf("kept is %v", s.Record.GetKept())
	}
	cold := under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_COMMITTED)
	for name, s := range map[string]transition.State{"after the loss": lose(live()), "which is said with it": live()} {
		before := proto.CloneOf(s.Record)
		c, err := transition.Reclaim(s, order(same), now)
		if err != nil || !proto.Equal(before, s.Record) {
			t.Fatalf("%s: %v; or the state given was changed", name, err)
		}
		rec := c.Record
		if rec.GetOwner().GetNode() != "n1" || rec.GetGeneration() != gen+2 || rec.GetOperation() != nil ||
			record.IsLost(rec) || !rec.GetKept().GetReclaimed() {
			t.Errorf("%s: %v", name, rec)
		}
		if s.Record.GetOperation() != nil && c.Closed.GetPhase() != nodev1.Phase_PHASE_LOST_AT_DEST {
			t.Errorf("%s: closed %v", name, c.Closed)
		}
		again, err := transition.Reclaim(transition.State{Record: rec}, order(same), now)
		if err != nil || again.Record != rec {
			t.Errorf("%s, once more: %v, %v", name, again.Record, err)
		}
		own, err := transition.Own(transition.State{Record: rec}, &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: gen + 2})
		if err != nil || own.Record.GetKept() != nil {
			t.Errorf("%s: it is still to be taken back by the next claim: %v, %v", name, own.Record, err)
		}
	}
	for name, bad := range map[string]struct {
		s   transition.State
		req *nodev1.ReclaimRequest
	}{
		"another move's":        {lose(live()), order(func(r *nodev1.ReclaimRequest) { r.Operation = "other" })},
		"an older generation":   {lose(live()), order(func(r *nodev1.ReclaimRequest) { r.Generation = gen })},
		"open, no node is lost": {live(), order(func(r *nodev1.ReclaimRequest) { r.LostNode = "" })},
		"a cold move's":         {cold, order(same)},
		"before the commit":     {under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_SWITCHING), order(same)},
		"one that has VM going": {under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_CLEANING), order(same)},
	} {
		if c, err := transition.Reclaim(bad.s, bad.req, now); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v, %v", name, c.Record, err)
		}
	}
}

// A wake from an older snapshot that fails leaves the source its better copy.
func TestKeptDuringAWake(t *testing.T) {
	s := under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_COMMITTED)
	s.Named.Digest = record.StreamPrefix + "aa"
	s.Record.Snapshots = []*nodev1.SnapshotRef{{Digest: digest}}
	op := operation(nodev1.Kind_KIND_WAKE, 0)
	op.Id, op.Destination, op.Generation = "new", "n3", gen+1
	c, err := transition.Open(transition.State{Record: s.Record}, &nodev1.OpenRequest{Vm: vm, Operation: op,
		ForceDigest: digest, LostNode: "n2"}, now)
	if err != nil || c.Record.GetKept().GetNode() != "n1" {
		t.Fatalf("%v, %v", c.Record, err)
	}
	c.Record.Operation.Phase = nodev1.Phase_PHASE_SWITCHING
	c, err = transition.Commit(transition.State{Record: c.Record, Named: c.Record.GetOperation()},
		&nodev1.CommitRequest{Vm: vm, Operation: "new", Attempt: 2, Generation: gen + 1, Owner: &nodev1.Owner{Node: "n3"}},
		now)
	if err != nil || c.Record.GetKept() != nil {
		t.Errorf("it has gone on elsewhere: %v, %v", c.Record.GetKept(), err)
	}
}
