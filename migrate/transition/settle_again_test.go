package transition

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// settleUnder is what a record becomes in a store that was put back once more, as that incarnation.
func settleUnder(t *testing.T, rec *nodev1.Record, under uint64, reserved bool, holders ...Holder) *nodev1.Record {
	t.Helper()
	s := State{Record: Lift(rec, under), Reserved: reserved,
		Store: &nodev1.StoreState{Incarnation: under, Waiting: true}}
	c, err := Settle(s, settled, holders, time.Unix(int64(under), 0))
	if err != nil {
		t.Fatal(err)
	}
	return c.Record
}

// A record that could not be settled is settled by the next reports as if they had been the first ones: however often
// nodes contradict each other, the one that is right in the end has the VM, and what the copy knew is not newer. A
// name that the controller alone gives is a node's by no report, unless the copy knows its VM.
func TestSettledOnceMore(t *testing.T) {
	phases := []string{"OWN", "OWN", "SENDING", "PREPARED", "RELEASED"}
	owners := []*nodev1.Owner{nil, {Node: "a"}, {Node: "b"}, {Digest: "sha256:d"}}
	wake := &nodev1.Operation{Id: "w", Vm: settled, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Phase: transferring,
		Destination: "b", Generation: 5, Digest: "sha256:d", Repository: "r"}
	rng := rand.New(rand.NewPCG(28, 11))
	say := func() (all []Holder) {
		for _, node := range []string{"a", "b", "c"} {
			h := holder(node, uint64(4+rng.IntN(5)), phases[rng.IntN(len(phases))], nil)
			if rng.IntN(10) == 0 {
				h.Uid = "another"
			}
			if rng.IntN(3) > 0 {
				all = append(all, h)
			}
		}
		return all
	}
	rivals := 0
	for n := range 5000 {
		copied := &nodev1.Record{Vm: settled, Uid: "u", Owner: owners[rng.IntN(len(owners))], Home: "old",
			Generation: []uint64{0, 5}[rng.IntN(2)]}
		reserved := rng.IntN(2) == 0
		switch {
		case rng.IntN(4) == 0:
			copied = nil
		case copied.GetGeneration() == 0: // nothing has owned it yet
			copied.Owner, copied.Home = nil, ""
		case copied.GetOwner().GetDigest() != "":
			copied.Repository, copied.Snapshots = "r", []*nodev1.SnapshotRef{{Digest: "sha256:d", Repository: "r"}}
			if rng.IntN(3) == 0 {
				copied.Operation = wake
			}
		}
		rec, incarnation := copied, uint64(incarnation)
		for rec = settleUnder(t, rec, incarnation, reserved, say()...); rec.GetRivals(); {
			rivals++
			incarnation++
			said := say()
			want := settleUnder(t, copied, incarnation, reserved, said...)
			rec = settleUnder(t, rec, incarnation, reserved, said...)
			if copied == nil {
				unknown(t, n, reserved, rec, want)
				continue
			}
			if d := cmp.Diff(want, rec, protocmp.Transform()); d != "" {
				t.Fatalf("history %d: %v: %s", n, said, d)
			}
		}
	}
	if rivals < 500 {
		t.Errorf("%d times only", rivals)
	}
}

// unknown wants a record that reports have made settled as if there were none.
func unknown(t *testing.T, history int, reserved bool, rec, want *nodev1.Record) {
	t.Helper()
	if reserved && !free(rec) {
		t.Fatalf("history %d: a report gives a node %v", history, rec)
	}
	if want == nil { // no node has it any more
		if rec.GetRivals() || rec.GetConflict() != "" || rec.GetReported() || !free(rec) {
			t.Fatalf("history %d: %v", history, rec)
		}
		return
	}
	if d := cmp.Diff(want, rec, protocmp.Transform()); d != "" {
		t.Fatalf("history %d: %s", history, d)
	}
}

// A record that a build before has made of one report does not say so in a field of its own. Under a name that the
// controller alone gives, no later report gives the node that name. And the uid is not the first one's for ever.
func TestSettledOnceMoreOfABuildBefore(t *testing.T) {
	const before = uint64(1)
	rec := settleUnder(t, nil, before, true, holder("a", 5, "OWN", nil))
	if !rec.GetRivals() || !rec.GetReported() {
		t.Fatalf("%v", rec)
	}
	rec.Reported = false
	other := holder("b", 6, "OWN", nil)
	other.Uid = "another"
	for name, holders := range map[string][]Holder{"the same node": {holder("a", 5, "OWN", nil)}, "another": {other},
		"both": {holder("a", 5, "OWN", nil), other}} {
		now := settleUnder(t, rec, before+1, true, holders...)
		if !free(now) || !now.GetRivals() || !now.GetReported() || name == "another" && now.GetUid() != "another" {
			t.Errorf("%s: %v", name, now)
		}
	}
}
