package transition

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM may begin from a snapshot of another one whose record was removed. Three writes make it: a record that says so
// and that no node boots, the mark at the snapshot that is held (Take), and the new owner (Begin). The mark is one
// compare-and-swap, so of several VMs one has the snapshot.

// heldPayer is the payer of what is held. It is no node's name. An earlier build knows no holds. It gives the deletion
// to no node, as the snapshot does not name the one that made it.
const heldPayer = "-"

// hold has those pending deletions stay that somebody has by a name. The rest, which is all that has the uid of the VM,
// stays with them.
func hold(pending, rest []*nodev1.Owed, operations []string) []*nodev1.Owed {
	any := false
	for _, o := range pending {
		if slices.Contains(operations, o.GetSnapshot().GetOperation()) {
			holdOne(o)
			any = true
		}
	}
	for _, o := range rest {
		if any {
			holdOne(o)
		}
	}
	return append(pending, rest...)
}

func holdOne(o *nodev1.Owed) {
	o.Hold, o.Payer, o.Made = &nodev1.Hold{}, heldPayer, o.GetSnapshot().GetNode()
	o.Snapshot = proto.CloneOf(o.GetSnapshot()) // which the record may have, too
	o.Snapshot.Node = ""
}

// letGo makes what was held a deletion, by the node that made it.
func letGo(o *nodev1.Owed, sinceUnixNano int64) *nodev1.Owed {
	o = proto.CloneOf(o)
	o.Hold, o.Payer, o.SinceUnixNano = nil, "", sinceUnixNano
	o.Snapshot.Node, o.Made = madeBy(o), ""
	return o
}

// checkFrom refuses a new record that is to begin from nothing.
func checkFrom(req *nodev1.EnsureRequest) error {
	from := req.GetRestoreFrom()
	if from == nil {
		return nil
	}
	call := "ensure the record of VM " + name(req.GetVm()) + " that begins from a snapshot"
	switch err := CheckVM(from.GetVm()); {
	case err != nil:
		return fmt.Errorf("%s: %w", call, err)
	case !operationID.MatchString(from.GetOperation()) || from.GetId() == "" || from.GetBegun():
		return fmt.Errorf("%s: operation %q, id %q: %w", call, from.GetOperation(), from.GetId(), errdefs.ErrInvalidArgument)
	}
	return nil
}

// MarkOf is the mark of a VM that begins from a snapshot.
func MarkOf(rec *nodev1.Record) *nodev1.Hold {
	return &nodev1.Hold{Vm: rec.GetVm(), Uid: rec.GetUid(), Id: rec.GetRestoreFrom().GetId()}
}

// Marked reports whether a held snapshot has the mark of the VM of a record.
func Marked(held *nodev1.Owed, rec *nodev1.Record) bool {
	return rec.GetRestoreFrom() != nil && proto.Equal(held.GetHold(), MarkOf(rec))
}

// Take marks a snapshot that is held as the one that a VM begins from. seen is the mark that the caller has read: it
// has proved that the VM of that mark, if there is one, is gone.
func Take(held *nodev1.Owed, seen, by *nodev1.Hold) (*nodev1.Owed, error) {
	switch now := held.GetHold(); {
	case proto.Equal(now, by) && by.GetVm() != nil:
		return held, nil
	case now == nil || by.GetVm() == nil || by.GetUid() == "" || by.GetId() == "":
		return nil, fmt.Errorf("begin VM %s from snapshot %s: nobody holds it: %w", name(by.GetVm()),
			held.GetSnapshot().GetDigest(), errdefs.ErrFailedPrecondition)
	case !proto.Equal(now, seen):
		return nil, fmt.Errorf("begin VM %s from snapshot %s: VM %s has it by now: %w", name(by.GetVm()),
			held.GetSnapshot().GetDigest(), name(now.GetVm()), errdefs.ErrConflict)
	}
	held = proto.CloneOf(held)
	held.Hold = proto.CloneOf(by)
	return held, nil
}

// Release ends a hold: the snapshot is to be deleted, or, with keep, it stays and is forgotten (nil). seen is as in
// Take: nothing begins from the snapshot, or has begun and can need it.
func Release(held *nodev1.Owed, seen *nodev1.Hold, keep bool, now time.Time) (*nodev1.Owed, error) {
	switch {
	case held.GetHold() == nil || !proto.Equal(held.GetHold(), seen):
		return nil, fmt.Errorf("give snapshot %s of VM %s up: VM %s has it by now: %w", held.GetSnapshot().GetDigest(),
			name(held.GetVm()), name(held.GetHold().GetVm()), errdefs.ErrConflict)
	case keep:
		return nil, nil
	}
	return letGo(held, now.UnixNano()), nil
}

// madeBy is the node that made what is held.
func madeBy(held *nodev1.Owed) string { return cmp.Or(held.GetMade(), held.GetSnapshot().GetNode()) }

// Begin has a snapshot of another VM own a VM that has never had an owner: it sleeps from then on, and an ordinary wake
// restores it. held is the snapshot with its mark. While this record is there, no other VM gets that mark.
func Begin(s State, held *nodev1.Owed) (Change, error) {
	rec, from, ref := s.Record, s.Record.GetRestoreFrom(), held.GetSnapshot()
	switch {
	case from == nil:
		return Change{}, fmt.Errorf("begin VM %s from a snapshot: its record does not say so: %w", name(rec.GetVm()),
			errdefs.ErrFailedPrecondition)
	case from.GetBegun():
		return keep(s)
	case !free(rec) || rec.GetOperation() != nil || record.IsLost(rec):
		return Change{}, &record.HeldError{Call: "begin VM " + name(rec.GetVm()) + " from a snapshot",
			Record: proto.CloneOf(rec)}
	case !Marked(held, rec) || !proto.Equal(held.GetVm(), from.GetVm()) || ref.GetOperation() != from.GetOperation() ||
		ref.GetDigest() == "":
		return Change{}, fmt.Errorf("begin VM %s from snapshot %s of VM %s: that is not held for it: %w", name(rec.GetVm()),
			ref.GetDigest(), name(held.GetVm()), errdefs.ErrFailedPrecondition)
	}
	rec = edit(s)
	ref = proto.CloneOf(ref)
	ref.Origin = &nodev1.Origin{Vm: proto.CloneOf(held.GetVm()), Uid: held.GetUid()}
	ref.Parent, ref.Guarded, ref.Node = "", false, madeBy(held)
	rec.Snapshots, rec.Base = append(rec.Snapshots, ref), ref.GetDigest()
	rec.RestoreFrom.Begun = true
	own(rec, &nodev1.Owner{Digest: ref.GetDigest()}, ref.GetRepository())
	return Change{Record: rec}, nil
}

// AfterHeld is what is left of removed records once a held snapshot has become next; nil: it stays and is forgotten.
// The rest of its VM is deleted once nothing of it is held. That would take what stays, too: then it is forgotten.
func AfterHeld(owed []*nodev1.Owed, held, next *nodev1.Owed) []*nodev1.Owed {
	is := func(o *nodev1.Owed, rest bool) bool {
		return o.GetHold() != nil && o.GetUid() == held.GetUid() && record.IsRest(o.GetSnapshot().GetDigest()) == rest
	}
	owed = slices.DeleteFunc(slices.Clone(owed), func(o *nodev1.Owed) bool {
		return o == held || next == nil && is(o, true)
	})
	if next == nil {
		return owed
	}
	owed = append(owed, next)
	if slices.ContainsFunc(owed, func(o *nodev1.Owed) bool { return is(o, false) }) {
		return owed
	}
	for i, o := range owed {
		if is(o, true) {
			owed[i] = letGo(o, next.GetSinceUnixNano())
		}
	}
	return owed
}
