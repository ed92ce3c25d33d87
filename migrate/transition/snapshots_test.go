package transition_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A snapshot that was whole before its operation failed is listed, with the age of what it
// holds: if the VM's node dies, nothing newer is left of it (I3).
func TestSnapshotOfAFailedOperationIsListed(t *testing.T) {
	stopped := now.Add(-time.Minute)
	captured := record.Receipt{Operation: "op", Attempt: 2, Generation: gen, Digest: digest, StopAt: stopped.UnixNano(),
		TotalBytes: 5}
	want := &nodev1.SnapshotRef{Digest: digest, Repository: "r", Tag: "t", Generation: gen, Operation: "op",
		CreatedUnixNano: stopped.UnixNano(), Bytes: 5, Checkpoint: true, Node: "n1"}
	finish := func(phase nodev1.Phase) func(transition.State) (transition.Change, error) {
		return func(s transition.State) (transition.Change, error) {
			return transition.Finish(s, &nodev1.FinishRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen,
				Phase: phase}, now)
		}
	}
	ends := map[string]func(transition.State) (transition.Change, error){
		"failed": finish(nodev1.Phase_PHASE_FAILED), "aborted": finish(nodev1.Phase_PHASE_ABORTED),
		"its node is lost": func(s transition.State) (transition.Change, error) {
			op := operation(nodev1.Kind_KIND_WAKE, 0)
			op.Id = "new"
			return transition.Open(transition.State{Record: s.Record}, &nodev1.OpenRequest{Vm: vm, Operation: op,
				ForceDigest: digest, LostNode: "n1"}, now)
		},
	}
	for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_CHECKPOINT, nodev1.Kind_KIND_MIGRATE} {
		for name, end := range ends {
			s := under(kind, nodev1.Phase_PHASE_ABORTING)
			s.Named.Receipt = captured.String()
			if refs := transition.Restorable(s.Record); len(refs) != 1 || !proto.Equal(refs[0], want) {
				t.Errorf("%v: what is there before: %v", kind, refs)
			}
			change, err := end(s)
			if err != nil {
				t.Fatalf("%v %s: %v", kind, name, err)
			}
			if refs := change.Record.GetSnapshots(); len(refs) != 1 || !proto.Equal(refs[0], want) {
				t.Errorf("%v %s: listed is %v", kind, name, refs)
			}
		}
	}
	live := under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_ABORTING)
	live.Named.Digest = record.StreamPrefix + "aa"
	if change, err := ends["failed"](live); err != nil || len(change.Record.GetSnapshots()) != 0 ||
		len(transition.Restorable(live.Record)) != 0 {
		t.Errorf("a stream is listed: %v, %v", change.Record, err)
	}
}

// An attempt that is turned to another node has made one too.
func TestSnapshotOfAnAttemptIsListed(t *testing.T) {
	s := under(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_ABORTING)
	s.Named.Retarget, s.Named.OpenedUnixNano, s.Named.Stdio = "n3", 77, "binary:///bin/sh?-c=id"
	change, err := transition.Retry(s, &nodev1.RetryRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen}, now)
	if err != nil {
		t.Fatal(err)
	}
	if refs := change.Record.GetSnapshots(); len(refs) != 1 || refs[0].GetDigest() != digest ||
		refs[0].GetCreatedUnixNano() != 77 {
		t.Errorf("listed is %v", refs)
	}
	// A node orders a VM to itself, says where output goes there, and turns the move: that would run on the other node.
	if op := change.Record.GetOperation(); op.GetDestination() != "n3" || op.GetStdio() != "" {
		t.Errorf("the next attempt goes to node %q, its output to %q", op.GetDestination(), op.GetStdio())
	}
	s.Named.Stdio = "null://"
	change, err = transition.Retry(s, &nodev1.RetryRequest{Vm: vm, Operation: "op", Attempt: 2, Generation: gen}, now)
	if err != nil || change.Record.GetOperation().GetStdio() != "null://" {
		t.Errorf("no output stays none: %v, %v", change.Record.GetOperation(), err)
	}
}

// After a rollback the newest snapshot of a VM is the one that it went back to, until it has made another: what came
// after that was left. Who loses the VM finds that one, and no rule deletes it meanwhile.
func TestNewestAfterARollback(t *testing.T) {
	rec := captured(t, runs(), "sha256:d1", &nodev1.Operation{})
	rec = captured(t, rec, "sha256:d2", &nodev1.Operation{})
	rec.Owner = &nodev1.Owner{Digest: "sha256:d2"}
	wake := &nodev1.Operation{Id: "w", Vm: vm, Kind: nodev1.Kind_KIND_WAKE, Destination: "n1", Attempt: 1, Generation: gen,
		Digest: "sha256:d1", Phase: nodev1.Phase_PHASE_SWITCHING}
	rec.Operation = wake
	c, err := transition.Commit(transition.State{Record: rec, Named: wake}, &nodev1.CommitRequest{Vm: vm, Operation: "w",
		Attempt: 1, Generation: gen, Owner: &nodev1.Owner{Node: "n1"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	rec = c.Record
	rec.Operation = nil
	lost := func(kind nodev1.Kind, phase nodev1.Phase) *nodev1.Record {
		was := proto.CloneOf(rec)
		was.Owner = nil
		was.Operation = &nodev1.Operation{Id: "m", Vm: vm, Kind: kind, Source: "n1", Destination: "n2", Attempt: 1,
			Generation: was.GetGeneration(), Phase: nodev1.Phase_PHASE_REVERTING}
		if phase == nodev1.Phase_PHASE_LOST_AT_DEST {
			was.Operation.Phase = nodev1.Phase_PHASE_COMMITTED
		}
		c, err := transition.Finish(transition.State{Record: was, Named: was.Operation}, &nodev1.FinishRequest{Vm: vm,
			Operation: "m", Attempt: 1, Generation: was.GetGeneration(), Phase: phase}, now)
		if err != nil {
			t.Fatal(err)
		}
		return c.Record
	}
	for name, rec := range map[string]*nodev1.Record{
		"moved away":            lost(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_LOST_AT_DEST),
		"hibernated":            lost(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_LOST_AT_SRC),
		"called so by before":   {Lost: "sha256:d2", Base: "sha256:d1"},
		"in conflict by before": {Conflict: "two", Base: "sha256:d1"},
	} {
		if rec.GetVm() != nil && rec.GetLost() != "sha256:d1" {
			t.Errorf("%s: %q is left of it", name, rec.GetLost())
		}
		if transition.InUse(rec, "sha256:d1") == "" {
			t.Errorf("%s: the snapshot from which it ran may go", name)
		}
	}
}
