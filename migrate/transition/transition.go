// Package transition holds every change that a VM's record can make, as pure functions:
// a state and a request give a changed record or a typed error. Package controller
// calls them between a load and a compare-and-swap; nothing here does IO.
//
// The tables of docs/dev/protocols/records.md describe it, and a test compares both.
package transition

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Asked is what a call is about in addition to the record of its VM.
type Asked struct {
	Operation        string // its id; empty: none
	PendingDeletions bool   // whether a snapshot's deletion is decided matters
}

// State is all that a transition looks at, read in one transaction.
type State struct {
	Record           *nodev1.Record     // nil: the VM has none
	Named            *nodev1.Operation  // the operation that the call names, open or closed, of whatever VM; nil: unknown
	PendingDeletions []*nodev1.Owed     // snapshots of the VM whose deletion is decided, if that is asked
	Store            *nodev1.StoreState // what the store says of itself
	Reserved         bool               // Settle: the name is the controller's to give
}

// Change is what a transition comes to. A Change whose Record is the very one of the
// State changes nothing; a nil Record removes it.
type Change struct {
	Record           *nodev1.Record
	Closed           *nodev1.Operation // for the history
	PendingDeletions []*nodev1.Owed    // snapshots that are to be deleted from now on
	Under            uint64            // version of the store's own state that it was made under
}

// maxSpent bounds the list of spent digests. Dropping the oldest is safe: a wake needs
// the owning digest anyway, the list only gives the better answer.
const maxSpent = 64

func keep(s State) (Change, error) { return Change{Record: s.Record}, nil }

// edit returns a copy of the record to change.
func edit(s State) *nodev1.Record { return proto.CloneOf(s.Record) }

// own moves the ownership: the only place where owner and generation change.
func own(rec *nodev1.Record, owner *nodev1.Owner, repository string) {
	for _, node := range []string{rec.GetOwner().GetNode(), owner.GetNode()} {
		rec.Home = cmp.Or(node, rec.GetHome())
		ran(rec, node)
	}
	rec.Owner = proto.CloneOf(owner)
	rec.Generation = record.After(rec.GetGeneration(), rec.GetIncarnation())
	rec.Repository, rec.Missing, rec.Place = repository, false, ""
	if rec.GetKept().GetReclaimed() {
		rec.Kept = nil // the VM has gone on since
	}
}

// ran notes that a VM is on a node; empty: it is on none.
func ran(rec *nodev1.Record, node string) {
	all := rec.GetRanOn()
	if node == "" || len(all) > 0 && all[len(all)-1] == node {
		return
	}
	rec.RanOn = append(slices.Clone(all[max(0, len(all)+1-record.MostRanOn):]), node)
}

// spend makes digest the last one that was spent: what the VM runs from (InUse), also
// where it is restored from it once more.
func spend(rec *nodev1.Record, digest string) {
	rec.Spent = slices.DeleteFunc(rec.Spent, func(d string) bool { return d == digest })
	rec.Spent = append(rec.Spent, digest)
	if over := len(rec.Spent) - maxSpent; over > 0 {
		rec.Spent = slices.Clone(rec.Spent[over:])
	}
}

func name(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }

// CheckVM refuses a VM whose namespace or id is none: they become paths, keys and text of terminals. The id
// of a pod's VM may be longer than containerd takes: it has the namespace in Kubernetes in it.
func CheckVM(vm *nodev1.VM) error {
	if vm.GetNamespace() == "" || vm.GetId() == "" {
		return fmt.Errorf("vm %q: namespace and id are needed: %w", name(vm), errdefs.ErrInvalidArgument)
	}
	if err := identifiers.Validate(vm.GetNamespace()); err != nil {
		return fmt.Errorf("vm.namespace: %w", err)
	}
	if err := record.CheckVMID(vm.GetId()); err != nil {
		return fmt.Errorf("vm.id: %w", err)
	}
	return nil
}

// CheckNamed is CheckVM for calls about a VM that may have a record: one that a build before has
// made under such a name can still be read and removed.
func CheckNamed(vm *nodev1.VM, rec *nodev1.Record) error {
	err := CheckVM(vm)
	if old := rec.GetVm(); err != nil && rec != nil && old.GetNamespace() == vm.GetNamespace() &&
		old.GetId() == vm.GetId() {
		return nil
	}
	return err
}

func missing(vm *nodev1.VM) error {
	return fmt.Errorf("the controller knows no VM %s. To see all VMs: godwit ps -a -A: %w", name(vm), errdefs.ErrNotFound)
}

// held says that rec's owner or open operation stands in the way.
func held(rec *nodev1.Record, call string) error {
	return &record.HeldError{Call: call, Record: proto.CloneOf(rec)}
}

// fresh checks that a call which names no operation was made for this record as it is.
func fresh(rec *nodev1.Record, call, uid string, generation uint64) error {
	if uid != "" && uid != rec.GetUid() {
		return fmt.Errorf("%s VM %s: its uid is %s, not %s: %w", call, name(rec.GetVm()), rec.GetUid(), uid,
			errdefs.ErrFailedPrecondition)
	}
	if generation != rec.GetGeneration() {
		return held(rec, fmt.Sprintf("%s VM %s at generation %d", call, name(rec.GetVm()), generation))
	}
	return nil
}
