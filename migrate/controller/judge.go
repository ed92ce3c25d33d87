package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// judge looks at what a node holds while records change. One that holds a newer claim than the
// record says, and could hold it, shows that the store went back in time: no record changes until
// somebody decides. Where the record names another node, that one is asked first, and meanwhile
// nobody claims that VM. What nobody can hold is remembered.
func (i *Incarnations) judge(ctx context.Context, state *nodev1.StoreState, req *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	v := &verdict{node: req.GetNode(), now: i.now()}
	latest := uint64(max(0, i.now().Unix())) + 1
	spoken, err := i.spoken(ctx, state, req.GetNode())
	if err != nil {
		return nil, err
	}
	if seen := req.GetIncarnation(); seen > state.GetIncarnation() {
		v.add(nil, "", seen <= latest, seen > latest, "it has seen incarnation %d of the store, which is at %d", seen, state.GetIncarnation())
	}
	for _, h := range req.GetHeld() {
		st, err := i.store.Load(ctx, h.GetVm(), transition.Asked{})
		if err != nil {
			return nil, err
		}
		rec, name := transition.Lift(st.Record, state.GetIncarnation()), h.GetVm().GetNamespace()+"/"+h.GetVm().GetId()
		switch {
		case rec == nil, h.GetUid() != rec.GetUid(), !(transition.Holder{Held: h}).Has(), h.GetGeneration() <= rec.GetGeneration():
			if spoken {
				break
			}
			if err := i.late(ctx, state, rec, req.GetNode(), h); err != nil {
				return nil, err
			}
		case record.Predates(rec, h.GetGeneration()): // a node that was away: the record's word is newer
		default:
			absurd := h.GetGeneration() >= record.Floor(latest)
			v.add(h.GetVm(), rec.GetOwner().GetNode(), !absurd && mayHold(rec, req.GetNode()), absurd, "it has VM %s under generation %d, its record is at %d", name, h.GetGeneration(), rec.GetGeneration())
		}
	}
	if !spoken {
		if err := i.notes.Note(ctx, kindReport, reportKey(state, req.GetNode()), []byte{}); err != nil {
			return nil, fmt.Errorf("note that node %s has reported: %w", req.GetNode(), err)
		}
	}
	return i.change(ctx, func(now *nodev1.StoreState) (bool, error) {
		if now.GetIncarnation() != state.GetIncarnation() || now.GetWaiting() {
			return false, nil
		}
		before := proto.CloneOf(now)
		v.answer(now, req)
		v.enter(now)
		return !proto.Equal(before, now), nil
	})
}

// verdict is what a report comes to.
type verdict struct {
	node   string
	now    time.Time
	behind *nodev1.Doubt // the first proof that the store went back
	doubts []*nodev1.Doubt
}

func (v *verdict) add(vm *nodev1.VM, owner string, credible, refuted bool, reason string, args ...any) {
	d := &nodev1.Doubt{Node: v.node, Vm: vm, Reason: fmt.Sprintf(reason, args...), UnixNano: v.now.UnixNano(), Owner: owner, Refuted: refuted}
	switch {
	case !credible && len(v.doubts) < maxOfNode:
		v.doubts = append(v.doubts, d)
	case credible && v.behind == nil:
		v.behind = d
	}
}

// answer is the word of an owner on what others say of its VMs.
func (v *verdict) answer(state *nodev1.StoreState, req *nodev1.ReportRequest) {
	for _, d := range state.GetDoubts() {
		if d.GetOwner() != v.node || d.GetRefuted() {
			continue
		}
		d.Refuted = slices.ContainsFunc(req.GetHeld(), func(h *nodev1.Held) bool {
			return proto.Equal(h.GetVm(), d.GetVm()) && (transition.Holder{Held: h}).Has()
		})
		if !d.GetRefuted() && v.behind == nil {
			v.behind = d
		}
	}
}

// enter notes the verdict. What was refuted stays so, however often the node says it.
func (v *verdict) enter(state *nodev1.StoreState) {
	state.Doubts = slices.DeleteFunc(state.Doubts, func(d *nodev1.Doubt) bool { return d.GetNode() == v.node && !d.GetRefuted() })
	mine := 0
	for _, d := range state.GetDoubts() {
		if d.GetNode() == v.node {
			mine++
		}
	}
	for _, d := range v.doubts {
		known := slices.ContainsFunc(state.GetDoubts(), func(old *nodev1.Doubt) bool {
			return old.GetNode() == v.node && old.GetOwner() == d.GetOwner() && proto.Equal(old.GetVm(), d.GetVm())
		})
		if !known && mine < maxOfNode && len(state.Doubts) < maxDoubts {
			state.Doubts, mine = append(state.Doubts, d), mine+1
		}
	}
	if state.Behind == nil {
		state.Behind = v.behind
	}
}

// mayHold reports whether a node can have claimed the VM since the record was written, by what the
// record says: it had the VM, or takes part in what is open on it, or nobody had it.
func mayHold(rec *nodev1.Record, node string) bool {
	op := rec.GetOperation()
	return rec.GetOwner().GetNode() == "" || slices.Contains([]string{rec.GetOwner().GetNode(), op.GetSource(), op.GetDestination()}, node)
}

// spoken reports whether a node has reported to this incarnation of the store before. What it had then
// was settled: no later word of it gives it a VM. A store that was never put back gives nobody any.
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

// late gives a VM to a node that has it since before the store was put back, and of which the
// store did not know when it was settled. Nobody has claimed the VM since.
func (i *Incarnations) late(ctx context.Context, state *nodev1.StoreState, rec *nodev1.Record, node string, h *nodev1.Held) error {
	if rec == nil || state.GetIncarnation() == 0 || rec.GetUid() != h.GetUid() || rec.GetOwner().GetNode() != "" || rec.GetOperation() != nil ||
		rec.GetGeneration() != record.Lifted(rec.GetCopied(), state.GetIncarnation()) {
		return nil
	}
	_, err := i.settleOne(ctx, state, h.GetVm(), []transition.Holder{{Node: node, Held: h}})
	if errdefs.IsConflict(err) { // somebody has claimed it now
		return nil
	}
	return err
}
