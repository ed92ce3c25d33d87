package transition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Holder is what a node has reported of a VM.
type Holder struct {
	Node string
	*nodev1.Held
}

// Has reports whether the node has the VM: it runs there, or stands still for an operation that
// takes it away.
func (h Holder) Has() bool {
	return slices.Contains([]string{"OWN", "SENDING", "PREPARED"}, h.GetPhase())
}

// of reports whether an operation holds the VM there.
func (h Holder) of(op *nodev1.Operation) bool {
	return op != nil && h.on(op.GetId(), op.GetAttempt()) && h.GetPhase() != "FENCED"
}

// on reports whether what the node says is about that attempt.
func (h Holder) on(operation string, attempt uint32) bool {
	return h.GetOperation() == operation && h.GetAttempt() == attempt
}

// keeps reports whether the node holds the VM as it was at a switch-over, by the record's own word.
func (h Holder) keeps(rec *nodev1.Record) bool {
	k := record.KeptOf(rec)
	return k != nil && h.GetPhase() == "PREPARED" && h.Node == k.GetNode() && h.GetGeneration() == k.GetGeneration() &&
		h.on(k.GetOperation(), k.GetAttempt())
}

const putBack = "the store of the records was put back from a copy"

// Settle makes the record of a VM, as a copy of the store has it, what the nodes say that hold the VM. All nodes
// have reported, but those that are retired. The newest claim wins: a node whose generation is above the copy's has
// the VM since. What contradicts itself is not guessed: the record says so, and no claim on the VM is admitted.
// Settled twice a record is what it was.
func Settle(s State, vm *nodev1.VM, holders []Holder, now time.Time) (Change, error) {
	if err := CheckNamed(vm, s.Record); err != nil {
		return Change{}, err
	}
	holders = slices.DeleteFunc(slices.Clone(holders), func(h Holder) bool {
		return Retired(s.Store, h.Node) || Impossible(s.Store, h.Held)
	})
	slices.SortStableFunc(holders, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.GetGeneration(), a.GetGeneration()), strings.Compare(a.Node, b.Node))
	})
	if s.Record == nil || reported(s) && slices.ContainsFunc(holders, Holder.Has) {
		return recreate(s, vm, holders)
	}
	rec := edit(s)
	var closed *nodev1.Operation
	winner, why := choose(rec, holders)
	switch {
	case why != "":
		rec.Conflict, rec.Rivals = why, true
	case winner != nil && (winner.keeps(rec) || undecided(rec.GetOperation(), winner, holders)):
		closed = keepAtSource(rec, winner, now)
	case winner != nil:
		closed = settleOperation(rec, winner, holders, now)
		if d := rec.GetOwner().GetDigest(); d != "" {
			spend(rec, d)
		}
		if winner.Node != rec.GetOwner().GetNode() || winner.GetGeneration() != rec.GetCopied() {
			rec.Place = "" // what it is in now no node knows
		}
		rec.Owner, rec.Generation, rec.Repository, rec.Home = &nodev1.Owner{Node: winner.Node}, winner.GetGeneration(), "",
			winner.Node
		ran(rec, winner.Node)
		rec.Lost, rec.Kept, rec.Conflict, rec.Rivals = "", nil, "", false
	default:
		closed = settleOperation(rec, nil, holders, now)
		if rec.GetRivals() {
			rec.Conflict, rec.Rivals, rec.Reported = "", false, false
		}
		absent(rec, holders, Retired(s.Store, rec.GetOwner().GetNode()))
	}
	guard(rec, s.Record) // what learn finds the copy did not know
	learn(rec, winner, holders, now)
	if closed == nil && proto.Equal(rec, s.Record) {
		return keep(s)
	}
	return Change{Record: rec, Closed: closed}, nil
}

// Impossible reports whether no node can hold a VM under that generation: it is none that the store
// has given before it was put back.
func Impossible(state *nodev1.StoreState, h *nodev1.Held) bool {
	return state.GetIncarnation() > 0 && h.GetGeneration() >= record.Floor(state.GetIncarnation())
}

// unknownName is of the conflict of a record that reports have made under a name that the controller alone gives.
const unknownName = "under a name that the controller alone gives, and the copy of the store does not know it"

// reported reports whether the word of nodes alone has made a record. A build before did not note it: there its
// conflict says so, and nothing else is in it.
func reported(s State) bool {
	rec := s.Record
	return rec.GetReported() || s.Reserved && rec.GetRivals() && strings.Contains(rec.GetConflict(), unknownName) &&
		Home(rec) == "" && rec.GetCopied() == 0 && rec.GetOperation() == nil && len(rec.GetSnapshots()) == 0
}

// recreate makes the record of a VM that was made after the copy. While rivals dispute it, it is made anew of the next
// reports: also its uid is the word of one of them.
func recreate(s State, vm *nodev1.VM, holders []Holder) (Change, error) {
	holders = slices.DeleteFunc(holders, func(h Holder) bool { return !h.Has() })
	if len(holders) == 0 {
		return keep(s)
	}
	top := holders[0]
	rec := &nodev1.Record{Vm: proto.CloneOf(vm)}
	if s.Record != nil {
		rec = edit(s)
	}
	rec.Uid, rec.Incarnation, rec.MadeBy, rec.Generation = top.GetUid(), s.Store.GetIncarnation(), top.Node, 0
	rec.Conflict, rec.Rivals, rec.Reported = "", false, false
	if s.Reserved {
		rec.MadeBy, rec.Rivals, rec.Reported = "", true, true
		rec.Conflict = fmt.Sprintf("node %s has it, %s; end it there, then order godwit controller restore once more; "+
			"without that node: godwit controller restore --retire %s", top.Node, unknownName, top.Node)
	} else if rec.Conflict = rivals(top, holders[1:], 0); rec.Conflict != "" {
		rec.Rivals, rec.Reported = true, true
	} else if undecided(nil, &top, holders) {
		keepAtSource(rec, &top, time.Time{})
	} else {
		rec.Owner, rec.Generation, rec.Home = &nodev1.Owner{Node: top.Node}, top.GetGeneration(), top.Node
		ran(rec, top.Node)
	}
	if proto.Equal(rec, s.Record) {
		return keep(s)
	}
	return Change{Record: rec}, nil
}

// choose answers who has the VM by now, nil: no node says so that can know it; why is set where it cannot be
// decided.
func choose(rec *nodev1.Record, holders []Holder) (winner *Holder, why string) {
	var fit, others []Holder
	for _, h := range holders {
		switch {
		case !h.Has():
		case h.GetUid() != rec.GetUid():
			others = append(others, h)
		case h.GetGeneration() > rec.GetCopied(), h.keeps(rec),
			h.GetGeneration() == rec.GetCopied() && h.Node == rec.GetOwner().GetNode():
			fit = append(fit, h)
		}
	}
	switch {
	case len(fit) == 0 && len(others) > 0:
		return nil, fmt.Sprintf("node %s has another VM of that name (uid %s, generation %d), which the copy of the store "+
			"does not know (uid %s); end it there, then order godwit controller restore once more; without that node: "+
			"godwit controller restore --retire %s",
			others[0].Node, others[0].GetUid(), others[0].GetGeneration(), rec.GetUid(), others[0].Node)
	case len(fit) == 0:
		return nil, ""
	}
	return &fit[0], rivals(fit[0], fit[1:], rec.GetCopied())
}

// undecided reports whether the node that has the VM has voted for an operation that may have been committed since the
// copy was made: the VM may have run elsewhere, and have ended with its host. The destination of a move has not run it
// if it is still armed there, or fenced. What a hibernate that is open has sent is the VM's state in either case.
func undecided(open *nodev1.Operation, winner *Holder, holders []Holder) bool {
	if winner.GetPhase() != "PREPARED" || open.GetKind() != nodev1.Kind_KIND_MIGRATE && winner.of(open) {
		return false
	}
	return !slices.ContainsFunc(holders, func(h Holder) bool {
		return h.Node != winner.Node && h.GetUid() == winner.GetUid() && h.on(winner.GetOperation(), winner.GetAttempt()) &&
			slices.Contains([]string{"INCOMING", "READY", "FENCED"}, h.GetPhase())
	})
}

// keepAtSource leaves what a node holds since its vote to the user: it is the VM as it was then. It answers the move of
// the copy that is over by that, if there is one.
func keepAtSource(rec *nodev1.Record, h *Holder, now time.Time) (closed *nodev1.Operation) {
	if h.keeps(rec) { // it was settled before
		if rec.GetRivals() {
			rec.Conflict, rec.Rivals = "", false
		}
		return nil
	}
	k := &nodev1.Kept{Node: h.Node, Operation: h.GetOperation(), Attempt: h.GetAttempt(), Generation: h.GetGeneration(),
		Digest: h.GetDigest(), Place: rec.GetPlace()}
	if closed = rec.GetOperation(); closed != nil {
		if h.of(closed) {
			k.Destination = closed.GetDestination()
		}
		save(rec, closed)
		closed.Reason, closed.Phase, closed.ClosedUnixNano = cmp.Or(closed.GetReason(), putBack), lostAtDest, now.UnixNano()
	}
	rec.Generation = record.After(max(rec.GetCopied(), h.GetGeneration()), rec.GetIncarnation())
	rec.Owner, rec.Operation, rec.Repository, rec.Place, rec.Home = nil, nil, "", "", h.Node
	rec.Lost, rec.Kept, rec.Conflict, rec.Rivals = "", k, "", false
	return closed
}

// rivals says who contradicts the node that has a VM under the highest generation. One that has
// voted runs nothing, and waits to hear that the VM is elsewhere.
func rivals(top Holder, others []Holder, copied uint64) string {
	for _, h := range others {
		if h.GetGeneration() < copied || h.GetPhase() == "PREPARED" && h.GetGeneration() < top.GetGeneration() &&
			h.GetUid() == top.GetUid() {
			continue
		}
		return fmt.Sprintf("nodes %s (its owner number %d) and %s (number %d) both say that they have it; end it at the one "+
			"that is wrong, then order godwit controller restore once more; without that node: godwit controller restore "+
			"--retire NODE",
			top.Node, top.GetGeneration(), h.Node, h.GetGeneration())
	}
	return ""
}

// settleOperation answers the operation of the copy, closed, unless it is under way still: the
// owner is the one that the copy has, and a node holds the VM for it.
func settleOperation(rec *nodev1.Record, winner *Holder, holders []Holder, now time.Time) *nodev1.Operation {
	op := rec.GetOperation()
	if op == nil {
		return nil
	}
	same := winner == nil || winner.Node == rec.GetOwner().GetNode() && winner.GetGeneration() == rec.GetCopied()
	if same && slices.ContainsFunc(holders, func(h Holder) bool { return h.of(op) }) {
		return nil
	}
	save(rec, op)
	op.Reason = cmp.Or(op.GetReason(), putBack)
	if abandon(op, "", now); op.GetPhase() == lostAtDest {
		if op.Phase = succeeded; winner == nil || winner.Node != op.GetDestination() {
			op.Phase = lostAtDest
			rec.Kept = kept(op)
		}
	}
	rec.Operation = nil
	if rec.GetOwner().GetNode() == "" {
		rec.Generation = record.Lifted(rec.GetGeneration(), rec.GetIncarnation())
	}
	return op
}

// absent is a VM that the copy gives to a node which says that it has it no more: it was left in a snapshot, or
// ended there, or came back from elsewhere. No node boots it on that word.
func absent(rec *nodev1.Record, holders []Holder, retired bool) {
	node := rec.GetOwner().GetNode()
	if node == "" || retired || rec.GetOperation() != nil {
		return
	}
	at := rec.GetGeneration()
	rec.Home, rec.Place = node, ""
	for _, h := range holders {
		if h.Node != node || h.GetUid() != rec.GetUid() || h.GetPhase() != "RELEASED" ||
			!strings.HasPrefix(h.GetDigest(), "sha256:") || !stores(rec, h.GetRepository()) {
			continue
		}
		op := &nodev1.Operation{Id: h.GetOperation(), Attempt: h.GetAttempt(), Kind: nodev1.Kind_KIND_HIBERNATE, Source: node,
			Digest: h.GetDigest(), Repository: h.GetRepository(), Generation: h.GetGeneration()}
		save(rec, op)
		rec.Owner, rec.Repository = &nodev1.Owner{Digest: h.GetDigest()}, h.GetRepository()
		rec.Generation = record.After(at, rec.GetIncarnation())
		return
	}
	rec.Lost = Newest(rec).GetDigest()
	rec.Owner, rec.Repository, rec.Generation = nil, "", record.After(at, rec.GetIncarnation())
	rec.Conflict = fmt.Sprintf("node %s had it when the copy of the store was made (as owner number %d), and says "+
		"that it "+
		"has it no more: it ended there, or sleeps in a snapshot that the copy does not know", node, at)
}

// stores reports whether snapshots of the VM lie in a repository by what the record knows itself:
// one that a node names is asked with the credentials of others.
func stores(rec *nodev1.Record, repository string) bool {
	in := func(ref *nodev1.SnapshotRef) bool { return ref.GetRepository() == repository }
	return repository != "" && (rec.GetRepository() == repository || slices.ContainsFunc(rec.GetSnapshots(), in) ||
		record.Given(rec, nil, repository))
}
