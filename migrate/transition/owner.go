package transition

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Ensure makes the record with the given uid if there is none. It is answered under the store's
// incarnation, as it is read from then on: its first claim names that generation. A VM that runs without
// a record gets one that its node owns, in one write: no other node claims it in between. Who names a uid alone means
// that VM, and not another one that has its name.
func Ensure(s State, req *nodev1.EnsureRequest, uid string) (Change, error) {
	if err := CheckVM(req.GetVm()); err != nil {
		return Change{}, err
	}
	switch {
	case req.GetUid() == "" && req.GetNode() != "":
		return Change{}, fmt.Errorf("ensure the record of VM %s for node %s: uid is empty: %w", name(req.GetVm()),
			req.GetNode(), errdefs.ErrInvalidArgument)
	case req.GetNode() == "" && s.Record != nil && !sameUID(s.Record, req.GetUid()):
		return Change{}, held(s.Record, fmt.Sprintf("ensure VM %s of uid %s, where the record is of uid %s",
			name(req.GetVm()), req.GetUid(), s.Record.GetUid()))
	case req.GetNode() != "" && OfClass(req):
		return Change{}, fmt.Errorf("ensure the record of VM %s for node %s: prefix and keep are not the node's to say: %w",
			name(req.GetVm()), req.GetNode(), errdefs.ErrPermissionDenied)
	case req.GetNode() != "" && req.GetRestoreFrom() != nil:
		return Change{}, fmt.Errorf("ensure the record of VM %s for node %s: restore_from is not the node's to say: %w",
			name(req.GetVm()), req.GetNode(), errdefs.ErrPermissionDenied)
	case req.GetKeep() > MaxKept:
		return Change{}, fmt.Errorf("ensure the record of VM %s: keep %d: at most %d: %w", name(req.GetVm()), req.GetKeep(),
			MaxKept, errdefs.ErrInvalidArgument)
	case s.Record != nil:
		return keep(s)
	}
	if req.GetPrefix() != "" {
		if err := record.CheckPrefix(req.GetPrefix()); err != nil {
			return Change{}, fmt.Errorf("ensure the record of VM %s: %w", name(req.GetVm()), err)
		}
	}
	if err := checkFrom(req); err != nil {
		return Change{}, err
	}
	rec := Lift(&nodev1.Record{Vm: proto.CloneOf(req.GetVm()), Uid: cmp.Or(req.GetUid(), uid),
		Prefix: req.GetPrefix(), Keep: req.GetKeep(), Sealed: req.GetSealed(), Signed: req.GetSigned(),
		RestoreFrom: proto.CloneOf(req.GetRestoreFrom())},
		s.Store.GetIncarnation())
	if req.GetNode() != "" {
		own(rec, &nodev1.Owner{Node: req.GetNode()}, "")
	}
	return Change{Record: rec}, nil
}

// OfClass reports whether a request says what only the controller says, by the class of the VM's snapshots.
func OfClass(req *nodev1.EnsureRequest) bool {
	return req.GetPrefix() != "" || req.GetKeep() != 0 || req.GetSealed() || req.GetSigned()
}

// Own claims a VM for a fresh boot on a node: one without owner, or one that the node
// owns already and whose last task is over. That is a new claim, under a new generation,
// so that nothing which was meant for the last task ends it.
func Own(s State, req *nodev1.OwnRequest) (Change, error) {
	rec, node := s.Record, req.GetNode()
	switch {
	case node == "":
		return Change{}, fmt.Errorf("own VM %s: node is empty: %w", name(req.GetVm()), errdefs.ErrInvalidArgument)
	case rec == nil:
		return Change{}, missing(req.GetVm())
	case rec.GetOperation() != nil:
		return Change{}, held(rec, "own VM "+name(rec.GetVm()))
	case rec.GetOwner().GetNode() == node && record.Follows(rec, req.GetGeneration()) && sameUID(rec, req.GetUid()):
		return keep(s)
	case rec.GetOwner().GetNode() != node && !free(rec), record.IsLost(rec):
		return Change{}, held(rec, "own VM "+name(rec.GetVm()))
	case record.Begins(rec):
		return Change{}, fmt.Errorf("own VM %s: %s: %w", name(rec.GetVm()), record.BeginsText(rec),
			errdefs.ErrFailedPrecondition)
	}
	if err := fresh(rec, "own", req.GetUid(), req.GetGeneration()); err != nil {
		return Change{}, err
	}
	place := ""
	if rec.GetOwner().GetNode() == node { // another task in the same place
		place = rec.GetPlace()
	}
	rec = edit(s)
	own(rec, &nodev1.Owner{Node: node}, "")
	rec.Place = place
	rec.Deletion, rec.Base = nil, "" // they were of the task before
	return Change{Record: rec}, nil
}

// EndOwnership ends the ownership of a node whose task is gone. A node that has found nothing of the VM only
// says so first (missing): from then on no Start counts on the claim. It looks once more, and names the
// version of the record that it has looked under: whatever has changed the record since keeps the claim.
func EndOwnership(s State, req *nodev1.DisownRequest) (Change, error) {
	rec, node := s.Record, req.GetNode()
	switch {
	case node == "":
		return Change{}, fmt.Errorf("end the ownership of VM %s: node is empty: %w", name(req.GetVm()),
			errdefs.ErrInvalidArgument)
	case rec == nil:
		return Change{}, missing(req.GetVm())
	case rec.GetOperation() != nil, rec.GetRivals():
		return Change{}, held(rec, "end the ownership of VM "+name(rec.GetVm()))
	case free(rec) && record.Follows(rec, req.GetGeneration()) && sameUID(rec, req.GetUid()):
		return keep(s)
	case rec.GetOwner().GetNode() != node:
		return Change{}, held(rec, fmt.Sprintf("end the ownership of VM %s of node %s", name(rec.GetVm()), node))
	}
	if err := fresh(rec, "end the ownership of", req.GetUid(), req.GetGeneration()); err != nil {
		return Change{}, err
	}
	switch v := req.GetVersion(); {
	case v != 0 && v != rec.GetVersion():
		return Change{}, fmt.Errorf("end the ownership of VM %s: node %s has looked at version %d of it, which is "+
			"at %d. To go "+
			"on, look again: %w", name(rec.GetVm()), node, v, rec.GetVersion(), errdefs.ErrFailedPrecondition)
	case req.GetMissing() && rec.GetMissing():
		return keep(s)
	}
	rec = edit(s)
	if req.GetMissing() {
		rec.Missing = true
		return Change{Record: rec}, nil
	}
	own(rec, nil, "")
	rec.Deletion, rec.Ended = nil, &nodev1.Ended{Generation: rec.GetGeneration(), Node: node}
	return Change{Record: rec}, nil
}

// Remove ends the record. A record that is not there is removed already.
func Remove(s State, req *nodev1.RemoveRequest, now time.Time) (Change, error) {
	rec, op := s.Record, s.Record.GetOperation()
	switch {
	case rec == nil:
		return keep(s)
	case !sameUID(rec, req.GetUid()):
		return Change{}, fresh(rec, "remove", req.GetUid(), rec.GetGeneration())
	case op != nil && !(req.GetForce() && abandoned(op, req.GetLostNode())), rec.GetRivals(),
		rec.GetOwner().GetNode() != "" && !record.IsLost(rec) && !gone(rec, req):
		return Change{}, held(rec, "remove VM "+name(rec.GetVm()))
	case (rec.GetOwner().GetDigest() != "" || record.IsLost(rec)) && !req.GetForce():
		return Change{}, held(rec, "remove VM "+name(rec.GetVm())+" without force")
	case req.GetVersion() != 0 && req.GetVersion() != rec.GetVersion():
		return Change{}, fmt.Errorf("remove VM %s: it was looked at in version %d, and is at %d: %w", name(rec.GetVm()),
			req.GetVersion(), rec.GetVersion(), errdefs.ErrFailedPrecondition)
	}
	if !req.GetDropSnapshots() {
		return Change{}, nil
	}
	if op != nil { // what it has stored is deleted, too
		rec = edit(s)
		save(rec, op)
	}
	if kept := pinned(rec); len(kept) > 0 && !req.GetForce() {
		return Change{}, fmt.Errorf("VM %s has pinned snapshots: %s. To keep them: godwit rm --keep-snapshots %s. To delete "+
			"them too: godwit rm --force %s: %w", name(rec.GetVm()), strings.Join(kept, ", "), rec.GetVm().GetId(),
			rec.GetVm().GetId(), errdefs.ErrFailedPrecondition)
	}
	pending := pendingDeletions(rec, rec.GetSnapshots(), req.GetPayer(), now)
	return Change{PendingDeletions: hold(pending, rest(rec, req, now), req.GetHold())}, nil
}

// gone reports whether req gives up a VM together with the node that has it in hand.
func gone(rec *nodev1.Record, req *nodev1.RemoveRequest) bool {
	return req.GetForce() && InHand(rec) == req.GetLostNode()
}

func free(rec *nodev1.Record) bool {
	return rec.GetOwner().GetNode() == "" && rec.GetOwner().GetDigest() == ""
}

func sameUID(rec *nodev1.Record, uid string) bool { return uid == "" || uid == rec.GetUid() }
