package transition

import (
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Name says what people call a VM. The node that has the VM says so, so that no other one gives it another name while
// it leaves.
func Name(s State, req *nodev1.NameRequest) (Change, error) {
	rec, vm, called := s.Record, name(req.GetVm()), req.GetName()
	switch {
	case rec == nil:
		return Change{}, missing(req.GetVm())
	case !sameUID(rec, req.GetUid()):
		return Change{}, fresh(rec, "name", req.GetUid(), rec.GetGeneration())
	case called == rec.GetVm().GetId():
		called = ""
	}
	if err := record.CheckVMName(called); called != "" && err != nil {
		return Change{}, err
	}
	if called == rec.GetName() {
		return keep(s)
	}
	owner := rec.GetOwner()
	switch op := rec.GetOperation(); {
	case op != nil && op.GetKind() != nodev1.Kind_KIND_CHECKPOINT:
		return Change{}, fmt.Errorf("VM %s is about to sleep, to wake or to move. Give it a name when that has ended: "+
			"godwit ps: %w", vm, errdefs.ErrFailedPrecondition)
	case owner.GetDigest() != "":
		return Change{}, fmt.Errorf("VM %s sleeps. Wake it first: godwit wake %s: %w", vm, req.GetVm().GetId(),
			errdefs.ErrFailedPrecondition)
	case owner.GetNode() != "" && owner.GetNode() != req.GetNode():
		return Change{}, fmt.Errorf("VM %s runs on node %s. Give it a name there: %w", vm, owner.GetNode(),
			errdefs.ErrFailedPrecondition)
	}
	rec = edit(s)
	rec.Name = called
	return Change{Record: rec}, nil
}
