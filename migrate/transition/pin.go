package transition

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// MaxStaying bounds the snapshots of a VM that no rule deletes: those that are pinned or were made by hand.
const MaxStaying = 100

// Pin names a snapshot, and says whether it may ever be deleted. No guard outlasts an unpin.
func Pin(s State, req *nodev1.PinRequest) (Change, error) {
	rec, digest := s.Record, req.GetDigest()
	switch {
	case rec == nil:
		return Change{}, missing(req.GetVm())
	case !sameUID(rec, req.GetUid()):
		return Change{}, fresh(rec, "pin a snapshot of", req.GetUid(), rec.GetGeneration())
	case req.Pinned == nil && req.Name == nil: // a node asks whether this controller knows of names
		return Change{}, fmt.Errorf("pin snapshot %s of VM %s: nothing is to be changed: %w", digest, name(rec.GetVm()),
			errdefs.ErrInvalidArgument)
	}
	i := slices.IndexFunc(rec.GetSnapshots(), func(ref *nodev1.SnapshotRef) bool { return ref.GetDigest() == digest })
	if i < 0 {
		return Change{}, fmt.Errorf("VM %s has no snapshot %s, or its deletion is decided. To see those it has: "+
			"godwit snapshot ls %s: %w", name(rec.GetVm()), digest, rec.GetVm().GetId(), errdefs.ErrNotFound)
	}
	rec = edit(s)
	ref := rec.GetSnapshots()[i]
	if req.Name != nil {
		if err := nameable(rec, req.GetName(), digest); err != nil {
			return Change{}, err
		}
		ref.Name = req.GetName()
	}
	if req.Pinned != nil {
		if req.GetPinned() && !stays(ref) {
			if err := roomToStay(rec); err != nil {
				return Change{}, err
			}
		}
		ref.Pinned, ref.Guarded = req.GetPinned(), ref.GetGuarded() && req.GetPinned()
	}
	if proto.Equal(rec, s.Record) {
		return keep(s)
	}
	return Change{Record: rec}, nil
}

// nameable refuses a name that another snapshot of the VM has, or will have. Empty is no name.
func nameable(rec *nodev1.Record, want, digest string) error {
	if want == "" {
		return nil
	}
	if err := record.CheckSnapshotName(want); err != nil {
		return err
	}
	taken := func(by string) error {
		return fmt.Errorf("VM %s has a snapshot of the name %s: %s. Choose another name, or give that one another: "+
			"godwit snapshot pin --name OTHER %s: %w", name(rec.GetVm()), want, by, by, errdefs.ErrAlreadyExists)
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetName() == want && ref.GetDigest() != digest {
			return taken(ref.GetDigest())
		}
	}
	if op := rec.GetOperation(); op.GetSnapshotName() == want && !Committed(op.GetPhase()) {
		return taken("that of operation " + op.GetId())
	}
	return nil
}

// stays reports whether no rule deletes a snapshot.
func stays(ref *nodev1.SnapshotRef) bool { return ref.GetPinned() || ref.GetManual() }

// roomToStay refuses one more that stays: a person who makes them has to remove some.
func roomToStay(rec *nodev1.Record) error {
	n := 0
	for _, ref := range rec.GetSnapshots() {
		if stays(ref) {
			n++
		}
	}
	if n < MaxStaying {
		return nil
	}
	return fmt.Errorf("VM %s has %d snapshots that were made by hand or pinned, and no rule deletes them. Remove some: "+
		"godwit snapshot rm DIGEST. Or have them made and removed by themselves: godwit checkpoint --every 10m: %w",
		name(rec.GetVm()), n, errdefs.ErrFailedPrecondition)
}

// promised checks what an operation says of the snapshot that it will make.
func promised(rec *nodev1.Record, op *nodev1.Operation, call string) error {
	if op.GetSnapshotName() == "" && !op.GetPinned() && !op.GetManual() {
		return nil
	}
	if err := nameable(rec, op.GetSnapshotName(), ""); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return roomToStay(rec)
}

// firm refuses to delete a snapshot that a person wants to stay. A node of the release before does not say that a
// person has ordered it.
func firm(rec *nodev1.Record, ref *nodev1.SnapshotRef, ordered bool) error {
	what := "snapshot " + ref.GetDigest()
	if ref.GetName() != "" {
		what = fmt.Sprintf("snapshot %s (%s)", ref.GetName(), ref.GetDigest())
	}
	switch {
	case ref.GetPinned():
		return fmt.Errorf("%s of VM %s stays: it is pinned. To delete it, first: godwit snapshot unpin %s: %w", what,
			name(rec.GetVm()), ref.GetDigest(), errdefs.ErrFailedPrecondition)
	case ref.GetGuarded() && !ordered:
		return fmt.Errorf("%s of VM %s stays: since the store was put back from a copy, a node has had the VM by its own "+
			"word alone. To delete it: godwit snapshot rm %s, on the controller: %w", what, name(rec.GetVm()),
			ref.GetDigest(), errdefs.ErrFailedPrecondition)
	case ref.GetManual() && !ordered:
		return fmt.Errorf("%s of VM %s stays: it was made by hand, and no rule deletes it. To delete it: "+
			"godwit snapshot rm %s, at a node of this release: %w", what, name(rec.GetVm()), ref.GetDigest(),
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

// pinned names the snapshots of a record that are pinned, by name or digest.
func pinned(rec *nodev1.Record) (all []string) {
	for _, ref := range rec.GetSnapshots() {
		switch {
		case ref.GetPinned() && ref.GetName() != "":
			all = append(all, ref.GetName())
		case ref.GetPinned():
			all = append(all, ref.GetDigest())
		}
	}
	return all
}

// adopt gives the children of a snapshot that leaves the list its own parent: the tree stays whole.
func adopt(rec *nodev1.Record, gone *nodev1.SnapshotRef) {
	for _, ref := range rec.GetSnapshots() {
		if ref.GetParent() == gone.GetDigest() {
			ref.Parent = gone.GetParent()
		}
	}
	if rec.GetBase() == gone.GetDigest() {
		rec.Base = gone.GetParent()
	}
}

// goesOn notes the listed snapshot from which the VM goes on; "": none.
func goesOn(rec *nodev1.Record, digest string) {
	rec.Base = ""
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == digest {
			rec.Base = digest
		}
	}
}
