package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// judge looks at what a node holds while records change. One that holds a newer claim than the
// record says, and could hold it, shows that the store went back in time: no record changes until
// somebody decides. What it cannot hold by the record is remembered, and doubted.
func (i *Incarnations) judge(ctx context.Context, state *nodev1.StoreState, req *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	var behind *nodev1.Doubt
	var doubts []*nodev1.Doubt
	add := func(vm *nodev1.VM, credible bool, reason string, args ...any) {
		d := &nodev1.Doubt{Node: req.GetNode(), Vm: vm, Reason: fmt.Sprintf(reason, args...), UnixNano: i.now().UnixNano()}
		if credible && behind == nil {
			behind = d
		} else if !credible && len(doubts) < maxDoubts {
			doubts = append(doubts, d)
		}
	}
	latest := uint64(max(0, i.now().Unix())) + 1
	if seen := req.GetIncarnation(); seen > state.GetIncarnation() {
		add(nil, seen <= latest, "it has seen incarnation %d of the store, which is at %d", seen, state.GetIncarnation())
	}
	for _, h := range req.GetHeld() {
		st, err := i.store.Load(ctx, h.GetVm(), transition.Asked{})
		if err != nil {
			return nil, err
		}
		rec, name := transition.Lift(st.Record, state.GetIncarnation()), h.GetVm().GetNamespace()+"/"+h.GetVm().GetId()
		switch {
		case rec == nil, h.GetUid() != rec.GetUid(), !(transition.Holder{Held: h}).Has(), h.GetGeneration() <= rec.GetGeneration():
			if _, err := i.late(ctx, state, rec, req.GetNode(), h); err != nil {
				return nil, err
			}
		case record.Predates(rec, h.GetGeneration()): // a node that was away: the record's word is newer
		default:
			credible := h.GetGeneration() < record.Floor(latest) && mayHold(rec, req.GetNode())
			add(h.GetVm(), credible, "it has VM %s under generation %d, its record is at %d", name, h.GetGeneration(), rec.GetGeneration())
		}
	}
	if behind == nil && len(doubts) == 0 {
		return state, nil
	}
	return i.change(ctx, func(now *nodev1.StoreState) (bool, error) {
		if now.GetIncarnation() != state.GetIncarnation() || now.GetWaiting() {
			return false, nil
		}
		now.Doubts = slices.DeleteFunc(now.Doubts, func(d *nodev1.Doubt) bool { return d.GetNode() == req.GetNode() })
		now.Doubts = append(now.Doubts, doubts[:min(len(doubts), max(0, maxDoubts-len(now.Doubts)))]...)
		if now.Behind == nil {
			now.Behind = behind
		}
		return true, nil
	})
}

// mayHold reports whether a node can have claimed the VM since the record was written, by what the
// record says: it had the VM, or takes part in what is open on it, or nobody had it.
func mayHold(rec *nodev1.Record, node string) bool {
	op := rec.GetOperation()
	return rec.GetOwner().GetNode() == "" || slices.Contains([]string{rec.GetOwner().GetNode(), op.GetSource(), op.GetDestination()}, node)
}

// late gives a VM to a node that has it since before the store was put back, and of which the
// store did not know when it was settled. Nobody has claimed the VM since.
func (i *Incarnations) late(ctx context.Context, state *nodev1.StoreState, rec *nodev1.Record, node string, h *nodev1.Held) (*nodev1.Record, error) {
	if rec == nil || state.GetIncarnation() == 0 || rec.GetUid() != h.GetUid() || rec.GetOwner().GetNode() != "" || rec.GetOperation() != nil ||
		rec.GetGeneration() != record.Lifted(rec.GetCopied(), state.GetIncarnation()) {
		return rec, nil
	}
	rec, err := i.settleOne(ctx, state, h.GetVm(), []transition.Holder{{Node: node, Held: h}})
	if errdefs.IsConflict(err) { // somebody has claimed it now
		return rec, nil
	}
	return rec, err
}
