package transition_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// captured commits a snapshot of the VM, as op says, and answers the record.
func captured(t *testing.T, rec *nodev1.Record, digest string, op *nodev1.Operation) *nodev1.Record {
	t.Helper()
	op.Id, op.Kind, op.Source, op.Attempt, op.Generation = "o-"+digest[7:], nodev1.Kind_KIND_CHECKPOINT, "n1", 1, gen
	op.Repository, op.Tag = "r/u", "t"
	c, err := transition.Open(transition.State{Record: rec}, &nodev1.OpenRequest{Vm: vm, Operation: op}, now)
	if err != nil {
		t.Fatal(err)
	}
	opened := c.Record
	for _, phase := range []nodev1.Phase{nodev1.Phase_PHASE_TRANSFERRING, nodev1.Phase_PHASE_SWITCHING} {
		req := &nodev1.AdvanceRequest{Vm: vm, Operation: op.GetId(), Attempt: 1, Generation: gen, Phase: phase}
		if phase == nodev1.Phase_PHASE_SWITCHING {
			req.Digest = digest
			req.Receipt = record.Receipt{Operation: op.GetId(), Attempt: 1, Generation: gen, Digest: digest, PushedBytes: 5,
				TotalBytes: 9, RAMBytes: 64}.String()
		}
		if c, err = transition.Advance(transition.State{Record: opened, Named: opened.Operation}, req, now); err != nil {
			t.Fatal(err)
		}
		opened = c.Record
	}
	c, err = transition.Commit(transition.State{Record: opened, Named: opened.Operation}, &nodev1.CommitRequest{Vm: vm,
		Operation: op.GetId(), Attempt: 1, Generation: gen, Owner: &nodev1.Owner{Node: "n1"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	c.Record.Operation = nil
	return c.Record
}

func runs() *nodev1.Record {
	return &nodev1.Record{Vm: vm, Uid: "u", Generation: gen, Owner: &nodev1.Owner{Node: "n1"}}
}

// A checkpoint has what its order said, its parent and what it sent; the next one builds on it. Where one leaves, its
// children get its parent, so that the tree has no hole.
func TestTreeOfSnapshots(t *testing.T) {
	rec := captured(t, runs(), "sha256:a1", &nodev1.Operation{SnapshotName: "before-upgrade", Manual: true})
	rec = captured(t, rec, "sha256:b2", &nodev1.Operation{})
	rec = captured(t, rec, "sha256:c3", &nodev1.Operation{Pinned: true})
	a, c := rec.GetSnapshots()[0], rec.GetSnapshots()[2]
	if a.GetName() != "before-upgrade" || !a.GetManual() || a.GetPinned() || a.GetParent() != "" || a.GetBytes() != 9 ||
		a.GetNewBytes() != 5 || a.GetRamBytes() != 64 {
		t.Fatalf("%v", a)
	}
	if c.GetParent() != "sha256:b2" || !c.GetPinned() || rec.GetBase() != "sha256:c3" {
		t.Fatalf("%v", rec)
	}
	change, err := transition.Trim(transition.State{Record: rec}, &nodev1.TrimRequest{Vm: vm, Digest: "sha256:b2"}, now)
	if err != nil || len(change.PendingDeletions) != 1 {
		t.Fatalf("%v, %v", change, err)
	}
	if got := change.Record.GetSnapshots()[1]; got.GetDigest() != "sha256:c3" || got.GetParent() != "sha256:a1" {
		t.Errorf("%v", change.Record)
	}
	rec = change.Record
	rec.Operation = nil
	rec.Owner, rec.Base = &nodev1.Owner{}, "sha256:c3"
	wake := &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Destination: "n2", Attempt: 1, Generation: gen,
		Digest: "sha256:a1"}
	for _, step := range []func(*nodev1.Record) (transition.Change, error){
		func(rec *nodev1.Record) (transition.Change, error) {
			return transition.Open(transition.State{Record: rec}, &nodev1.OpenRequest{Vm: vm, Operation: wake,
				ForceDigest: "sha256:a1"}, now)
		},
		func(rec *nodev1.Record) (transition.Change, error) {
			return transition.Advance(transition.State{Record: rec, Named: rec.Operation}, &nodev1.AdvanceRequest{Vm: vm,
				Operation: "w", Attempt: 1, Generation: gen, Phase: nodev1.Phase_PHASE_TRANSFERRING}, now)
		},
		func(rec *nodev1.Record) (transition.Change, error) {
			return transition.Commit(transition.State{Record: rec, Named: rec.Operation}, &nodev1.CommitRequest{Vm: vm,
				Operation: "w", Attempt: 1, Generation: gen, Owner: &nodev1.Owner{Node: "n2"}}, now)
		},
	} {
		change, err := step(rec)
		if err != nil {
			t.Fatal(err)
		}
		rec = change.Record
	}
	if rec.GetBase() != "sha256:a1" {
		t.Errorf("after a wake of it the VM has gone on from %q", rec.GetBase())
	}
}

// No rule deletes what is pinned or was made by hand, also if a node of the release before applies it: it does
// not say that a person has ordered it. An order deletes the second; the first has to be unpinned.
func TestNoRuleDeletesIt(t *testing.T) {
	for _, tt := range []struct {
		op      *nodev1.Operation
		ordered bool
		says    string // empty: it goes
	}{
		{&nodev1.Operation{Pinned: true}, false, "godwit snapshot unpin"},
		{&nodev1.Operation{Pinned: true}, true, "godwit snapshot unpin"},
		{&nodev1.Operation{Manual: true}, false, "made by hand"},
		{&nodev1.Operation{Manual: true, SnapshotName: "x"}, false, "snapshot x (sha256:a1)"},
		{&nodev1.Operation{Manual: true}, true, ""},
		{&nodev1.Operation{}, false, ""},
	} {
		s := transition.State{Record: captured(t, runs(), "sha256:a1", tt.op)}
		before := proto.CloneOf(s.Record)
		c, err := transition.Trim(s, &nodev1.TrimRequest{Vm: vm, Digest: "sha256:a1", Ordered: tt.ordered}, now)
		if !proto.Equal(before, s.Record) {
			t.Error("the state was changed")
		}
		if tt.says == "" && (err != nil || len(c.PendingDeletions) != 1) || tt.says != "" &&
			(!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.says) || c.PendingDeletions != nil) {
			t.Errorf("%v, ordered %v: %v, %v", tt.op, tt.ordered, c, err)
		}
	}
}

// The end of a record takes no pinned snapshot with it, unless that is said.
func TestRemoveSparesPinned(t *testing.T) {
	rec := captured(t, runs(), "sha256:a1", &nodev1.Operation{Pinned: true, SnapshotName: "golden-day"})
	rec.Owner = &nodev1.Owner{}
	s := transition.State{Record: rec}
	_, err := transition.Remove(s, &nodev1.RemoveRequest{Vm: vm, DropSnapshots: true}, now)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "golden-day") ||
		!strings.Contains(err.Error(), "--keep-snapshots") {
		t.Errorf("%v", err)
	}
	for _, req := range []*nodev1.RemoveRequest{{Vm: vm}, {Vm: vm, DropSnapshots: true, Force: true}} {
		if c, err := transition.Remove(s, req, now); err != nil || c.Record != nil {
			t.Errorf("%v: %v, %v", req, c, err)
		}
	}
}

// A name is of one snapshot, also of one that is about to be, and reads as no digest. An error changes nothing.
func TestPin(t *testing.T) {
	rec := captured(t, runs(), "sha256:a1", &nodev1.Operation{SnapshotName: "first", Manual: true})
	rec = captured(t, rec, "sha256:b2", &nodev1.Operation{})
	open, err := transition.Open(transition.State{Record: rec}, &nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{
		Id: "o", Kind: nodev1.Kind_KIND_CHECKPOINT, Source: "n1", Attempt: 1, Generation: gen, SnapshotName: "next"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	yes, no := true, false
	str := func(s string) *string { return &s }
	for _, tt := range []struct {
		req  *nodev1.PinRequest
		want func(error) bool // nil: it is done
		says string
	}{
		{&nodev1.PinRequest{Digest: "sha256:b2", Name: str("first")}, errdefs.IsAlreadyExists, "sha256:a1"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Name: str("next")}, errdefs.IsAlreadyExists, "operation o"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Name: str("cafe")}, errdefs.IsInvalidArgument, "digest"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Name: str("a b")}, errdefs.IsInvalidArgument, "a b"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Name: str("../x")}, errdefs.IsInvalidArgument, "letters"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Name: str(strings.Repeat("x", 65))}, errdefs.IsInvalidArgument, "64"},
		{&nodev1.PinRequest{Digest: "sha256:none", Pinned: &yes}, errdefs.IsNotFound, "godwit snapshot ls"},
		{&nodev1.PinRequest{Digest: "sha256:b2"}, errdefs.IsInvalidArgument, "nothing"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Pinned: &yes, Uid: "other"}, errdefs.IsFailedPrecondition, "uid"},
		{&nodev1.PinRequest{Digest: "sha256:b2", Pinned: &yes, Name: str("second")}, nil, ""},
		{&nodev1.PinRequest{Digest: "sha256:a1", Name: str("first")}, nil, ""},
		{&nodev1.PinRequest{Digest: "sha256:a1", Name: str("")}, nil, ""},
		{&nodev1.PinRequest{Digest: "sha256:a1", Pinned: &no}, nil, ""},
	} {
		tt.req.Vm = vm
		s := transition.State{Record: proto.CloneOf(open.Record)}
		c, err := transition.Pin(s, tt.req)
		if !proto.Equal(s.Record, open.Record) {
			t.Errorf("%v: the state was changed", tt.req)
		}
		if tt.want != nil {
			if !tt.want(err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v: %v", tt.req, err)
			}
			continue
		}
		if err != nil || len(c.PendingDeletions) > 0 {
			t.Errorf("%v: %v, %v", tt.req, c, err)
		}
		for _, ref := range c.Record.GetSnapshots() {
			if ref.GetDigest() == tt.req.GetDigest() && (tt.req.Name != nil && ref.GetName() != tt.req.GetName() ||
				tt.req.Pinned != nil && ref.GetPinned() != tt.req.GetPinned()) {
				t.Errorf("%v: %v", tt.req, ref)
			}
		}
	}
	if _, err := transition.Pin(transition.State{}, &nodev1.PinRequest{Vm: vm, Pinned: &yes}); !errdefs.IsNotFound(err) {
		t.Errorf("without a record: %v", err)
	}
}

// So many stay and no more: who makes one more by hand, or pins one, is told to remove some. A schedule goes on.
func TestSoManyStay(t *testing.T) {
	rec := runs()
	for i := range transition.MaxStaying {
		rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Digest: fmt.Sprintf("sha256:%d", i), Manual: i%2 == 0,
			Pinned: i%2 == 1})
	}
	rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Digest: "sha256:plain"})
	yes := true
	_, err := transition.Pin(transition.State{Record: rec}, &nodev1.PinRequest{Vm: vm, Digest: "sha256:plain",
		Pinned: &yes})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "godwit snapshot rm") {
		t.Errorf("pin: %v", err)
	}
	open := func(op *nodev1.Operation) error {
		op.Id, op.Kind, op.Source, op.Attempt, op.Generation = "o", nodev1.Kind_KIND_CHECKPOINT, "n1", 1, gen
		_, err := transition.Open(transition.State{Record: rec}, &nodev1.OpenRequest{Vm: vm, Operation: op}, now)
		return err
	}
	if err := open(&nodev1.Operation{Manual: true}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "--every") {
		t.Errorf("by hand: %v", err)
	}
	if err := open(&nodev1.Operation{}); err != nil {
		t.Errorf("of a schedule: %v", err)
	}
	if _, err := transition.Pin(transition.State{Record: rec}, &nodev1.PinRequest{Vm: vm, Digest: "sha256:0",
		Pinned: &yes}); err != nil {
		t.Errorf("one that stays anyway: %v", err)
	}
}
