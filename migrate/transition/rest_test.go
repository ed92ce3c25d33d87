package transition_test

import (
	"slices"
	"testing"
	"time"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM that is given up with its lost node leaves nothing in the repository that an open capture was writing to. That
// it has stored no snapshot there, a store that was put back says of what it does not know.
func TestRestOfAnOpenCapture(t *testing.T) {
	for name, c := range map[string]struct {
		op   *nodev1.Operation
		want []string // repositories, each with the node whose directory it is
	}{
		"none open": {nil, []string{"r/u "}},
		"to another prefix, by its order": {&nodev1.Operation{Kind: nodev1.Kind_KIND_CHECKPOINT, Source: "n1", Prefix: "p",
			Repository: "p/u"}, []string{"p/u given", "r/u "}},
		"a cold move": {&nodev1.Operation{Kind: nodev1.Kind_KIND_MIGRATE, Source: "n1", Destination: "n2",
			Repository: "q/u"}, []string{"q/u ", "r/u "}},
		"to a directory": {&nodev1.Operation{Kind: nodev1.Kind_KIND_HIBERNATE, Source: "n1", Repository: "oci-layout:/d/u"},
			[]string{"oci-layout:/d/u n1", "r/u "}},
		"to where others' snapshots are": {&nodev1.Operation{Kind: nodev1.Kind_KIND_HIBERNATE, Source: "n1",
			Repository: "r/another"}, []string{"r/u "}},
		"a wake": {&nodev1.Operation{Kind: nodev1.Kind_KIND_WAKE, Destination: "n1", Repository: "oci-layout:/d/u"},
			[]string{"r/u "}},
	} {
		rec := &nodev1.Record{Vm: vm, Uid: "u", Generation: gen, Incarnation: 1, Owner: &nodev1.Owner{Node: "n1"},
			Snapshots: []*nodev1.SnapshotRef{{Digest: digest, Repository: "r/u"}}, Operation: c.op}
		if c.op != nil {
			c.op.Id, c.op.Vm, c.op.Attempt, c.op.Generation = "o", vm, 1, gen
			c.op.Phase = nodev1.Phase_PHASE_TRANSFERRING
		}
		got, err := transition.Remove(transition.State{Record: rec}, &nodev1.RemoveRequest{Vm: vm, Force: true,
			DropSnapshots: true, LostNode: "n1"}, time.Unix(1, 0))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var all []string
		for _, o := range got.PendingDeletions {
			s := o.GetSnapshot()
			if !record.IsRest(s.GetDigest()) {
				continue
			}
			text := s.GetRepository() + " " + s.GetNode()
			if s.GetGiven() {
				text += "given"
			}
			all = append(all, text)
		}
		if slices.Sort(all); !slices.Equal(all, c.want) {
			t.Errorf("%s: the rest is deleted in %q, want %q", name, all, c.want)
		}
	}
}
