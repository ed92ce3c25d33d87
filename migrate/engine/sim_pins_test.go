package engine

import (
	"context"
	"fmt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// simPins are the snapshots that a user has pinned, as far as the user knows. One whose unpinning was ordered may go.
type simPins struct {
	sure map[string]bool
	busy bool // one order at a time, so that their order is known
	made int
}

// pin has a user of a node name a snapshot and pin it, or unpin it. The answer may be lost.
func (r *simRounds) pin(n *simNode) {
	if r.pins.busy {
		return
	}
	r.pins.busy = true
	r.s.spawn("pin", "user", func() {
		defer func() { r.pins.busy = false }()
		rec, err := n.get()
		n.round.host.late() // what the user has seen is old by now
		if err != nil || len(rec.GetSnapshots()) == 0 {
			return
		}
		digest, back := pick(&r.s.schedule, rec.GetSnapshots()).GetDigest(), r.back
		pinned, name := !r.pins.sure[digest] || r.s.rng.IntN(3) > 0, fmt.Sprintf("n%d", r.s.rng.IntN(2))
		if !pinned {
			delete(r.pins.sure, digest)
		}
		_, err = outside(n, func(ctx context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
			return stored(&r.s.schedule, ctx, n.records.Pin, req)
		}, &nodev1.PinRequest{Vm: vm, Uid: rec.GetUid(), Digest: digest, Pinned: &pinned, Name: &name})
		if err == nil && pinned && r.back == back {
			r.pins.sure[digest] = true
			r.pins.made++
		}
	})
}

// kept looks whether a snapshot that is deleted was to stay, and whether a name leads to one snapshot.
func (r *simRounds) kept(rec *nodev1.Record, digest string) {
	if r.pins.sure[digest] {
		r.s.violated("I3: snapshot %s is deleted, which is pinned: %v", digest, rec)
	}
	named := map[string]string{}
	for _, ref := range rec.GetSnapshots() {
		if other := named[ref.GetName()]; ref.GetName() != "" && other != "" {
			r.s.violated("I3: snapshots %s and %s have one name, %s", other, ref.GetDigest(), ref.GetName())
		}
		named[ref.GetName()] = ref.GetDigest()
	}
}
