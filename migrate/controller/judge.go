package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// judge looks at what a node holds while records change. What it holds under a newer claim than the record says is
// a doubt of that record: no claim on the VM is admitted until its owner has refuted it, or a person decides.
// Doubts of several nodes, or of the controller's own, show that the store went back in time (signs). A claim that
// no node can have names its node, and is no doubt.
func (i *Incarnations) judge(ctx context.Context, state *nodev1.StoreState,
	req *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	v := &verdict{node: req.GetNode(), now: i.now(), room: i.raised.room(req.GetNode(), i.now())}
	latest := uint64(max(0, i.now().Unix())) + 1
	spoken, err := i.spoken(ctx, state, req.GetNode())
	if err != nil {
		return nil, err
	}
	if seen := req.GetIncarnation(); seen > state.GetIncarnation() {
		v.claim(seen > latest, &nodev1.Doubt{Credible: true}, "it has seen incarnation %d of the store, which is at %d", seen,
			state.GetIncarnation())
	}
	for _, h := range req.GetHeld() {
		st, err := i.store.Load(ctx, h.GetVm(), transition.Asked{})
		if errdefs.IsInvalidArgument(err) { // no record can have that name
			continue
		}
		if err != nil {
			return nil, err
		}
		rec, name := transition.Lift(st.Record, state.GetIncarnation()), h.GetVm().GetNamespace()+"/"+h.GetVm().GetId()
		switch {
		case rec == nil && h.GetPhase() == "PREPARED":
			v.add(&nodev1.Doubt{Vm: h.GetVm()}, "it has VM %s, which stands still for operation %s, and there is no record "+
				"of it; if it was given up: godwit rm --force %s there", name, h.GetOperation(), name)
		case newerThan(rec, req.GetNode(), h):
			owner := rec.GetOwner().GetNode()
			v.claim(h.GetGeneration() >= record.Floor(latest),
				&nodev1.Doubt{Vm: h.GetVm(), Owner: owner, Credible: owner == "" || owner == v.node},
				"it has VM %s as its owner number %d, and the controller knows of %d", name, h.GetGeneration(), rec.GetGeneration())
		case !spoken:
			if err := i.late(ctx, state, rec, req.GetNode(), h); err != nil {
				return nil, err
			}
		}
	}
	if !spoken {
		if err := i.notes.Note(ctx, kindReport, reportKey(state, req.GetNode()), []byte{}); err != nil {
			return nil, fmt.Errorf("note that node %s has reported: %w", req.GetNode(), err)
		}
	}
	after, err := i.change(ctx, func(now *nodev1.StoreState) (bool, error) {
		if now.GetIncarnation() != state.GetIncarnation() || now.GetWaiting() {
			return false, nil
		}
		before := proto.CloneOf(now)
		v.answer(now, req)
		v.enter(now)
		signs(now, i.self)
		return !proto.Equal(before, now), nil
	})
	if err == nil {
		i.name(v)
	}
	return after, err
}

// newerThan reports whether a node has a VM under a claim that its record does not know. A record gets
// a generation of its own with each owner, before a node has a journal of it: two owners of one number
// are none of the same store. A node that was away since before the store was put back has nothing newer.
func newerThan(rec *nodev1.Record, node string, h *nodev1.Held) bool {
	if rec == nil || h.GetUid() != rec.GetUid() || !(transition.Holder{Held: h}).Has() ||
		record.Predates(rec, h.GetGeneration()) {
		return false
	}
	return record.Newer(rec, node, h.GetGeneration())
}

// spoken reports whether a node has reported to this incarnation of the store before. What it had then was settled:
// no later word of it gives it a VM. In a store that was never put back no word gives a node a VM.
func (i *Incarnations) spoken(ctx context.Context, state *nodev1.StoreState, node string) (bool, error) {
	if state.GetIncarnation() == 0 {
		return true, nil
	}
	notes, err := i.notes.Notes(ctx, kindReport, "")
	if err != nil {
		return false, fmt.Errorf("look whether node %s has reported: %w", node, err)
	}
	return slices.ContainsFunc(notes, func(n store.Note) bool { return n.Key == reportKey(state, node) }), nil
}

// late gives a VM to a node that has it since before the store was put back. The store did not know of that node
// when it was settled. The VM was not claimed since.
func (i *Incarnations) late(ctx context.Context, state *nodev1.StoreState, rec *nodev1.Record, node string,
	h *nodev1.Held) error {
	if rec == nil || state.GetIncarnation() == 0 || rec.GetUid() != h.GetUid() || rec.GetOwner().GetNode() != "" ||
		rec.GetOperation() != nil ||
		rec.GetGeneration() != record.Lifted(rec.GetCopied(), state.GetIncarnation()) {
		return nil
	}
	_, err := i.settleOne(ctx, state, h.GetVm(), []transition.Holder{{Node: node, Held: h}})
	if errdefs.IsConflict(err) { // somebody has claimed it now
		return nil
	}
	return err
}
