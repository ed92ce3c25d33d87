package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// verdict is what a report comes to.
type verdict struct {
	node   string // who reports
	now    time.Time
	doubts []*nodev1.Doubt
	fresh  string          // what stands against the records by its word; empty: nothing
	bears  []*nodev1.Doubt // of others, which its word makes credible
	again  string          // what it says though it was refuted
	absurd string          // what it says, and no node can have

	room    int    // doubts that it may raise now about VMs of others
	raised  int    // that it has raised
	limited string // what it may not raise now
}

func (v *verdict) add(d *nodev1.Doubt, reason string, args ...any) {
	d.Node, d.Reason, d.UnixNano = v.node, fmt.Sprintf(reason, args...), v.now.UnixNano()
	v.doubts = append(v.doubts, d)
}

// claim is a doubt, unless no node can have what is said: that is no doubt, and says only who lies.
func (v *verdict) claim(absurd bool, d *nodev1.Doubt, reason string, args ...any) {
	if absurd {
		v.absurd = fmt.Sprintf(reason, args...) + ", which no node can have"
		return
	}
	v.add(d, reason, args...)
}

// answer is the word of an owner on what others say of its VMs. One that stands still for an operation
// may have gone to the other node, and says nothing. One that is not there may have ended: its owner
// then confirms nothing but that the other node can have it.
func (v *verdict) answer(state *nodev1.StoreState, req *nodev1.ReportRequest) {
	v.bears = nil
	for _, d := range state.GetDoubts() {
		if d.GetOwner() != v.node || d.GetRefuted() || d.GetCredible() {
			continue
		}
		at := slices.IndexFunc(req.GetHeld(), func(h *nodev1.Held) bool { return proto.Equal(h.GetVm(), d.GetVm()) })
		switch {
		case at < 0 || !(transition.Holder{Held: req.GetHeld()[at]}).Has():
			d.Credible = true
			v.bears = append(v.bears, d)
		case req.GetHeld()[at].GetPhase() != "PREPARED":
			d.Refuted = true
		}
	}
}

// enter notes the verdict. What was refuted stays so, however often the node says it; what it says no
// more goes. Where there are too many, VMs that are no node's come first: they are claimed by others.
func (v *verdict) enter(state *nodev1.StoreState) {
	v.fresh, v.again, v.raised, v.limited = "", "", 0, ""
	all := v.bounded()
	said := func(d *nodev1.Doubt) bool {
		return d.GetNode() == v.node && slices.ContainsFunc(all, func(s *nodev1.Doubt) bool { return same(s, d) })
	}
	state.Doubts = slices.DeleteFunc(state.Doubts, func(d *nodev1.Doubt) bool {
		old := v.now.Sub(time.Unix(0, d.GetUnixNano())) >= raisedWithin
		return d.GetNode() == v.node && !said(d) && (!d.GetRefuted() || old)
	})
	for _, d := range all {
		at := slices.IndexFunc(state.GetDoubts(), func(old *nodev1.Doubt) bool { return same(old, d) })
		switch {
		case at >= 0 && state.GetDoubts()[at].GetRefuted():
			v.again = d.GetReason()
		case at >= 0 && v.stands(state.GetDoubts()[at]):
			v.fresh = cmp.Or(v.fresh, d.GetReason())
		case at >= 0:
		case v.late(d):
			v.limited = d.GetReason()
		case makeRoom(state, d, said):
			state.Doubts = append(state.Doubts, d)
			if v.stands(d) {
				v.fresh = cmp.Or(v.fresh, d.GetReason())
			}
		}
	}
}

// askedFor is how long an owner that is up takes to say what it has: it hears of a doubt with its next heartbeat.
const askedFor = 30 * time.Second

// stands reports whether no answer of an owner is to be expected that refutes a doubt.
func (v *verdict) stands(d *nodev1.Doubt) bool {
	return d.GetCredible() || d.GetOwner() == "" || v.now.Sub(time.Unix(0, d.GetUnixNano())) >= askedFor
}

// makeRoom reports whether there is room for one more doubt. What was refuted gives way, of its own node first. Else
// a sign of an old store takes the place of a word on which an owner is asked. Of such words each node has its share.
func makeRoom(state *nodev1.StoreState, d *nodev1.Doubt, said func(*nodev1.Doubt) bool) bool {
	of := map[string]int{}
	for _, old := range state.GetDoubts() {
		of[old.GetNode()]++
	}
	for of[d.GetNode()] > maxOfNode {
		own := slices.IndexFunc(state.GetDoubts(), func(old *nodev1.Doubt) bool {
			return old.GetNode() == d.GetNode() && old.GetRefuted() && !said(old)
		})
		if own < 0 {
			return false
		}
		state.Doubts = slices.Delete(state.Doubts, own, own+1)
		of[d.GetNode()]--
	}
	if len(state.Doubts) < maxDoubts {
		return true
	}
	least := 0
	for at, old := range state.GetDoubts() {
		than := state.GetDoubts()[least]
		if cmp.Or(cmp.Compare(weight(old), weight(than)), cmp.Compare(of[than.GetNode()], of[old.GetNode()])) < 0 {
			least = at
		}
	}
	gives := state.GetDoubts()[least]
	if weight(gives) > weight(d) || weight(gives) == weight(d) &&
		(d.GetCredible() || of[gives.GetNode()] <= of[d.GetNode()]+1) { // credible ones of so many nodes stop all records
		return false
	}
	state.Doubts = slices.Delete(state.Doubts, least, least+1)
	return true
}

// weight orders doubts by what is lost without them.
func weight(d *nodev1.Doubt) int {
	switch {
	case d.GetRefuted():
		return 0
	case !d.GetCredible():
		return 1
	}
	return 2
}

// late reports whether a doubt is one too many for now. One that stops VMs of the node's own alone is not
// counted.
func (v *verdict) late(d *nodev1.Doubt) bool {
	if d.GetVm() == nil || d.GetOwner() == v.node {
		return false
	}
	v.raised++
	return v.raised > v.room
}

// same reports whether two doubts are one node's of one claim.
func same(a, b *nodev1.Doubt) bool {
	refuted := a.GetRefuted() || b.GetRefuted()
	return a.GetNode() == b.GetNode() && proto.Equal(a.GetVm(), b.GetVm()) && (!refuted || a.GetOwner() == b.GetOwner())
}

// bounded are the doubts of a report: so many, and one that stands for the others about VMs of the
// node's own.
func (v *verdict) bounded() []*nodev1.Doubt {
	first := func(d *nodev1.Doubt) int {
		switch {
		case d.GetVm() == nil:
			return 0
		case d.GetOwner() == "":
			return 1
		case d.GetOwner() != v.node:
			return 2
		}
		return 3
	}
	all := slices.SortedStableFunc(slices.Values(v.doubts), func(a, b *nodev1.Doubt) int {
		return cmp.Compare(first(a), first(b))
	})
	if len(all) <= maxOfNode {
		return all
	}
	some := slices.Clone(all[:maxOfNode])
	if some[0].GetVm() != nil && slices.ContainsFunc(all[maxOfNode:], (*nodev1.Doubt).GetCredible) {
		rest := &nodev1.Doubt{Node: v.node, UnixNano: v.now.UnixNano(), Credible: true,
			Reason: fmt.Sprintf("it has %d VMs under newer generations than their records", len(all))}
		some = append(some, rest)
	}
	return some
}

// signs notes that the store went back: two nodes hold what it does not know, or the controller's own
// does. One node alone may lie.
func signs(state *nodev1.StoreState, self string) {
	var first *nodev1.Doubt
	for _, d := range state.GetDoubts() {
		switch {
		case state.GetBehind() != nil || !d.GetCredible() || d.GetRefuted():
		case d.GetNode() == self, first != nil && first.GetNode() != d.GetNode():
			state.Behind = proto.CloneOf(d)
		case first == nil:
			first = d
		}
	}
}

// repeated is how often a node says what was refuted before it is named.
const repeated = 3

// name tells of nodes once: what one says stands against the records, or it goes on saying what was refuted, or says
// what no node can have.
func (i *Incarnations) name(v *verdict) {
	i.raised.add(v.node, v.now, min(v.raised, v.room))
	for _, d := range v.bears {
		i.tell(d.GetNode(), d.GetReason())
	}
	reason := cmp.Or(v.absurd, v.fresh)
	if v.limited != "" {
		reason = fmt.Sprintf("%s, one of too many within %v", v.limited, raisedWithin)
	}
	if v.again != "" && i.repeat(v.node) >= repeated {
		reason = v.again + ", which was refuted"
	}
	i.tell(v.node, reason)
}

// repeat counts that a node says once more what was refuted.
func (i *Incarnations) repeat(node string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.repeats[node]++
	return i.repeats[node]
}

// tell tells of a node, unless it was told of before. An empty reason is none.
func (i *Incarnations) tell(node, reason string) {
	if reason == "" || node == i.self {
		return
	}
	i.mu.Lock()
	before := i.named[node]
	i.named[node] = true
	i.mu.Unlock()
	if !before && i.Contradicts != nil {
		i.Contradicts(node, reason)
	}
}
