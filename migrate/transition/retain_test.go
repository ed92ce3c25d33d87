package transition_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM that was restored once more from a snapshot that it had left runs from that one, and from no other: what its
// next snapshot builds on stays.
func TestRestoredOnceMore(t *testing.T) {
	rec := listed(&nodev1.Record{
		Owner: &nodev1.Owner{Digest: "sha256:old"}, Spent: []string{digest, "sha256:old"},
		Operation: &nodev1.Operation{Id: "o", Vm: vm, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Generation: gen,
			Phase: nodev1.Phase_PHASE_TRANSFERRING, Digest: digest, Destination: "n1"},
	})
	c, err := transition.Commit(transition.State{Record: rec, Named: rec.Operation},
		&nodev1.CommitRequest{Vm: vm, Operation: "o", Attempt: 1, Generation: gen, Owner: &nodev1.Owner{Node: "n1"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	rec = c.Record
	rec.Operation = nil
	if use := transition.InUse(rec, digest); !strings.Contains(use, "runs from it") ||
		transition.InUse(rec, "sha256:old") != "" || len(rec.GetSpent()) != 2 {
		t.Errorf("use %q, spent %v", use, rec.GetSpent())
	}
}

func listed(rec *nodev1.Record) *nodev1.Record {
	rec.Vm, rec.Uid, rec.Generation = vm, "u", gen
	rec.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:old", Repository: "r/u", Tag: "g1-a"},
		{Digest: digest, Repository: "r/u", Tag: "g5-b"}}
	return rec
}

// A snapshot in use is never deleted; any other leaves the list and its deletion is pending, in one write. One
// that two hold, such as a wake and the record, stays until the last of them is done.
func TestTrim(t *testing.T) {
	for _, tt := range []struct {
		name string
		rec  *nodev1.Record
		use  string // empty: it may go
	}{
		{"owner", &nodev1.Record{Owner: &nodev1.Owner{Digest: digest}}, "owns the VM"},
		{"lost", &nodev1.Record{Lost: digest}, "lost"},
		{"parent", &nodev1.Record{Owner: &nodev1.Owner{Node: "n1"}, Spent: []string{"sha256:old", digest}}, "runs from it"},
		{"operation", &nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:old"}, Operation: &nodev1.Operation{Id: "o",
			Digest: digest, Phase: nodev1.Phase_PHASE_CLEANING}}, "operation o uses it"},
		{"under way", &nodev1.Record{Owner: &nodev1.Owner{Node: "n1"}, Operation: &nodev1.Operation{Id: "o",
			Phase: nodev1.Phase_PHASE_TRANSFERRING}}, "operation o is under way"},
		{"rollback", &nodev1.Record{Owner: &nodev1.Owner{Node: "n1"}, Operation: &nodev1.Operation{Id: "o",
			Phase: nodev1.Phase_PHASE_ABORTING}}, "operation o is under way"},
		{"spent before", &nodev1.Record{Owner: &nodev1.Owner{Node: "n1"}, Spent: []string{digest, "sha256:old"}}, ""},
		{"asleep since", &nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:old"}, Spent: []string{digest}}, ""},
		{"cleaning up", &nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:old"}, Operation: &nodev1.Operation{Id: "o",
			Digest: "sha256:old", Phase: nodev1.Phase_PHASE_CLEANING}}, ""},
		{"unowned", &nodev1.Record{}, ""},
	} {
		s := transition.State{Record: listed(tt.rec)}
		before := proto.CloneOf(s.Record)
		c, err := transition.Trim(s, &nodev1.TrimRequest{Vm: vm, Digest: digest}, now)
		if !proto.Equal(before, s.Record) {
			t.Errorf("%s: the state was changed", tt.name)
		}
		if tt.use != "" {
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.use) || c.PendingDeletions != nil {
				t.Errorf("%s: %v, %v", tt.name, c, err)
			}
			continue
		}
		if err != nil || len(c.Record.GetSnapshots()) != 1 || len(c.PendingDeletions) != 1 ||
			c.PendingDeletions[0].GetSnapshot().GetTag() != "g5-b" || c.PendingDeletions[0].GetUid() != "u" {
			t.Errorf("%s: %v, %v", tt.name, c, err)
		}
	}
	held := listed(&nodev1.Record{Owner: &nodev1.Owner{Digest: digest}, Operation: &nodev1.Operation{Id: "o",
		Digest: digest, Phase: nodev1.Phase_PHASE_SWITCHING}})
	for _, lets := range []func(){nil, func() {
		held.Operation = nil
	}, func() { held.Owner = &nodev1.Owner{Digest: "sha256:new"} }} {
		if lets != nil {
			lets()
		}
		c, err := transition.Trim(transition.State{Record: held}, &nodev1.TrimRequest{Vm: vm, Digest: digest}, now)
		if last := held.GetOwner().GetDigest() != digest; last != (err == nil && len(c.PendingDeletions) == 1) || !last &&
			!errdefs.IsFailedPrecondition(err) {
			t.Errorf("held by %v and %v: %v, %v", held.GetOperation(), held.GetOwner(), c.PendingDeletions, err)
		}
	}
	s := transition.State{Record: listed(&nodev1.Record{})}
	if c, err := transition.Trim(s, &nodev1.TrimRequest{Vm: vm, Digest: "sha256:none"}, now); err != nil ||
		c.Record != s.Record || c.PendingDeletions != nil {
		t.Errorf("a snapshot that is not listed: %v, %v", c, err)
	}
	for uid, refused := range map[string]bool{"": false, "u": false, "another": true} {
		_, err := transition.Trim(s, &nodev1.TrimRequest{Vm: vm, Uid: uid, Digest: digest}, now)
		if errdefs.IsFailedPrecondition(err) != refused {
			t.Errorf("of the VM %q: %v", uid, err)
		}
	}
}

// The end of a record deletes its snapshots only if that is asked for.
func TestRemoveOrdersDeletions(t *testing.T) {
	for _, drop := range []bool{false, true} {
		c, err := transition.Remove(transition.State{Record: listed(&nodev1.Record{})},
			&nodev1.RemoveRequest{Vm: vm, DropSnapshots: drop}, now)
		if err != nil || c.Record != nil || (len(c.PendingDeletions) == 2) != drop || (len(c.PendingDeletions) == 0) == drop {
			t.Errorf("drop %v: %v, %v", drop, c, err)
		}
	}
}

// A VM that is given up with its lost node takes with it whatever operation of that node is open. What that has stored
// is owed. An operation of a node that lives holds the record.
func TestRemoveWithALostNode(t *testing.T) {
	owners := map[string]*nodev1.Owner{"n1": {Node: "n1"}, "asleep": {Digest: "sha256:old"}}
	for name, test := range map[string]struct {
		kind  nodev1.Kind
		phase nodev1.Phase
		owner string
		lost  string
		force bool
		ends  bool
	}{
		"it hibernates there":          {nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_SWITCHING, "n1", "n1", true, true},
		"without force":                {nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_SWITCHING, "n1", "n1", false, false},
		"no node is called lost":       {nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_SWITCHING, "n1", "", true, false},
		"another node is lost":         {nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_SWITCHING, "n1", "n2", true, false},
		"its hibernate has committed":  {nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING, "asleep", "n1", true, true},
		"its checkpoint runs there":    {nodev1.Kind_KIND_CHECKPOINT, nodev1.Phase_PHASE_SWITCHING, "n1", "n1", true, true},
		"it moves away":                {nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_SWITCHING, "n1", "n1", true, true},
		"it moves to a lost node":      {nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_SWITCHING, "n1", "n2", true, false},
		"it wakes there":               {nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_SWITCHING, "asleep", "n2", true, true},
		"it wakes there from a loss":   {nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_SWITCHING, "n1", "n2", true, true},
		"it wakes at a node that runs": {nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_SWITCHING, "n1", "n1", true, false},
	} {
		rec := listed(&nodev1.Record{Owner: owners[test.owner], Operation: operation(test.kind, test.phase)})
		rec.Snapshots = rec.Snapshots[:1]
		was := proto.CloneOf(rec)
		c, err := transition.Remove(transition.State{Record: rec}, &nodev1.RemoveRequest{Vm: vm, Force: test.force,
			DropSnapshots: true, LostNode: test.lost}, now)
		if !proto.Equal(rec, was) {
			t.Errorf("%s: the state was changed", name)
		}
		if !test.ends {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s: %v, %v", name, c, err)
			}
			continue
		}
		owed := slices.ContainsFunc(c.PendingDeletions, func(o *nodev1.Owed) bool {
			return o.GetSnapshot().GetDigest() == digest
		})
		if err != nil || c.Record != nil || owed != (test.kind != nodev1.Kind_KIND_WAKE) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

// Nothing restores what is being deleted, by force neither.
func TestPendingIsNotRestored(t *testing.T) {
	rec := listed(&nodev1.Record{Owner: &nodev1.Owner{Digest: "sha256:old"}})
	op := operation(nodev1.Kind_KIND_WAKE, 0)
	op.Id = "new"
	deletions := []*nodev1.Owed{{Snapshot: &nodev1.SnapshotRef{Digest: digest}}}
	for _, pending := range []bool{false, true} {
		s := transition.State{Record: rec}
		if pending {
			s.PendingDeletions = deletions
		}
		_, err := transition.Open(s, &nodev1.OpenRequest{Vm: vm, Operation: op, ForceDigest: digest}, now)
		if errdefs.IsFailedPrecondition(err) != pending || !pending && err != nil {
			t.Errorf("pending %v: %v", pending, err)
		}
	}
}
