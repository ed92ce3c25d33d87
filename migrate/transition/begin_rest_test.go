package transition_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What the store may not know of a VM stays while a snapshot of it is held, and goes with the last one. It stays for
// ever where one of them is kept.
func TestRestFollowsTheLastHold(t *testing.T) {
	for name, c := range map[string]struct {
		keep  [2]bool
		order [2]int
		rest  bool
	}{"both go": {order: [2]int{0, 1}, rest: true}, "in the other order": {order: [2]int{1, 0}, rest: true},
		"the first is kept": {keep: [2]bool{true, false}, order: [2]int{0, 1}},
		"the last is kept":  {keep: [2]bool{false, true}, order: [2]int{0, 1}}} {
		names := [2]string{"named-1", "named-2"}
		rec := &nodev1.Record{Vm: vm, Uid: "uid", Generation: gen, Incarnation: 1, Version: 5, Repository: "r/uid",
			Snapshots: []*nodev1.SnapshotRef{{Digest: digest, Operation: names[0], Generation: 3, Repository: "r/uid"},
				{Digest: "sha256:bb", Operation: names[1], Generation: 4, Repository: "r/uid"}}}
		change, err := transition.Remove(transition.State{Record: rec}, &nodev1.RemoveRequest{Vm: vm, Uid: "uid",
			Force: true, DropSnapshots: true, Hold: names[:], Version: 5}, now)
		if err != nil {
			t.Fatal(err)
		}
		other := &nodev1.Owed{Vm: vm, Uid: "of before", Hold: &nodev1.Hold{}, Snapshot: &nodev1.SnapshotRef{
			Digest: record.RestOf("of before", ""), Repository: "r/uid"}}
		all := append(change.PendingDeletions, other)
		rest := func() (there, owed int) {
			for _, o := range all {
				if record.IsRest(o.GetSnapshot().GetDigest()) && o.GetUid() == "uid" {
					if there++; o.GetHold() == nil {
						owed++
					}
				}
			}
			return there, owed
		}
		for step, i := range c.order {
			if there, owed := rest(); owed > 0 || there == 0 && !slices.Contains(c.keep[:step], true) {
				t.Errorf("%s, step %d: %d of the rest, %d owed", name, step, there, owed)
			}
			held := all[slices.IndexFunc(all, func(o *nodev1.Owed) bool { return o.GetSnapshot().GetOperation() == names[i] })]
			taken, err := transition.Take(held, held.GetHold(), mark(1))
			if err != nil {
				t.Fatal(err)
			}
			before := len(all)
			if all = transition.AfterHeld(all, held, taken); len(all) != before {
				t.Errorf("%s: a mark has made %d of %d", name, len(all), before)
			}
			next, err := transition.Release(taken, taken.GetHold(), c.keep[step], now.Add(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			all = transition.AfterHeld(all, taken, next)
		}
		there, owed := rest()
		if (owed > 0) != c.rest || there != owed {
			t.Errorf("%s: %d of the rest, %d owed", name, there, owed)
		}
		if !slices.ContainsFunc(all, func(o *nodev1.Owed) bool { return proto.Equal(o, other) }) {
			t.Errorf("%s: the rest of another VM has gone", name)
		}
		for _, o := range all {
			if o.GetUid() == "uid" && (o.GetHold() != nil || o.GetPayer() != "" ||
				o.GetSinceUnixNano() != now.Add(time.Hour).UnixNano()) {
				t.Errorf("%s: %v", name, o)
			}
		}
	}
}
