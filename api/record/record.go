// Package record decides what a node may do with a VM from the VM's record alone. The
// record itself is the message of api/node/v1; its store and its transitions live in
// package migrate.
package record

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Action is what a Create does.
type Action int

// What a Create can come to.
const (
	Refuse  Action = iota // the error says why
	Boot                  // fresh; the VM has no state anywhere
	Restore               // from Decision.Digest
	Receive               // from its source, which streams it
)

// Intent is what the caller of Create asked for. The zero value asks for nothing.
type Intent struct {
	Operation string // id of the open wake or move
	Attempt   uint32
	Digest    string
	Stream    *machinev1.Stream // of a live move, instead of a digest
	// Checkpoint is the digest that containerd's checkpoint of the task points to.
	Checkpoint string
	// Left is what the container is marked with: the snapshot that its VM was put into when it left
	// this node. A caller that knows of none leaves it empty.
	Left string
	// Place is what the VM would be in: the UID of the pod that the caller makes. Empty: nothing that has an id.
	Place string
}

// Set reports whether the caller asked for a restore.
func (i Intent) Set() bool { return i.Digest != "" || i.Stream != nil }

// wants names it for errors.
func (i Intent) wants() string {
	if i.Stream != nil {
		return "the stream of operation " + i.Operation
	}
	return i.Digest
}

// Decision of Decide.
type Decision struct {
	Action     Action
	Digest     string
	Repository string
	Move       bool // the controller commits; the VM runs when the record says so
	Lost       bool // a wake without an order: the caller says so in an event
}

// Decide is the one restore decision: every way to create a VM goes through it. rec may
// be nil on a node that keeps no records. No registry is asked and no tag looked at.
func Decide(rec *nodev1.Record, node string, intent Intent) (Decision, error) {
	if intent.Checkpoint != "" {
		return decideCheckpoint(rec, node, intent.Checkpoint)
	}
	if rec == nil {
		if intent.Set() {
			return Decision{}, fmt.Errorf("restore %s: it is not known as the state of that VM: %w", intent.wants(),
				errdefs.ErrFailedPrecondition)
		}
		return boot(nil, "without records", intent)
	}
	vm := rec.GetVm().GetNamespace() + "/" + rec.GetVm().GetId()
	if rec.GetRivals() {
		return Decision{}, fmt.Errorf("create VM %s: %s: %w", vm, LostText(rec), errdefs.ErrFailedPrecondition)
	}
	if op := rec.GetOperation(); op != nil {
		return decideOpen(vm, rec, op, node, intent)
	}
	switch owner := rec.GetOwner(); {
	case owner.GetDigest() != "":
		if intent.Set() && intent.Digest != owner.GetDigest() {
			return Decision{}, fmt.Errorf("restore VM %s from %s: its newest state is %s: %w", vm, intent.wants(),
				owner.GetDigest(), errdefs.ErrFailedPrecondition)
		}
		return Decision{Action: Restore, Digest: owner.GetDigest(), Repository: rec.GetRepository(), Lost: !intent.Set()}, nil
	case intent.Set():
		return Decision{}, fmt.Errorf("restore VM %s from %s: no snapshot owns it: %w", vm, intent.wants(),
			errdefs.ErrFailedPrecondition)
	case IsLost(rec):
		return Decision{}, fmt.Errorf("create VM %s: %s: %w", vm, LostText(rec), errdefs.ErrFailedPrecondition)
	case owner.GetNode() == node && !fits(rec.GetPlace(), intent):
		return Decision{}, fmt.Errorf("create VM %s: node %s has it in place %s, this is %q: %w", vm, node, rec.GetPlace(),
			intent.Place, errdefs.ErrFailedPrecondition)
	case Begins(rec):
		return Decision{}, fmt.Errorf("create VM %s: %s: %w", vm, BeginsText(rec), errdefs.ErrFailedPrecondition)
	case owner.GetNode() == "" || owner.GetNode() == node:
		return boot(rec, vm, intent)
	default:
		return Decision{}, fmt.Errorf("create VM %s: node %s owns it: %w", vm, owner.GetNode(), errdefs.ErrFailedPrecondition)
	}
}

// boot is a fresh one. It is refused while it would take the place of a state that sleeps
// somewhere. These records, empty ones perhaps, may not know that state.
func boot(rec *nodev1.Record, vm string, intent Intent) (Decision, error) {
	if intent.Left != "" && !knows(rec, intent.Left) {
		return Decision{}, fmt.Errorf("create VM %s: it was left in snapshot %s, which the controller of this node does "+
			"not know. Has it lost its store, or is [controller] missing in the configuration? To give that state up, delete "+
			"the container and make it anew: %w",
			vm, intent.Left, errdefs.ErrFailedPrecondition)
	}
	return Decision{Action: Boot}, nil
}

// knows reports whether digest is a snapshot of the VM of rec, past or present.
func knows(rec *nodev1.Record, digest string) bool {
	if strings.HasPrefix(digest, StreamPrefix) { // a VM that went to another node, and its records go on
		return rec.GetGeneration() > 0
	}
	return slices.Contains(rec.GetSpent(), digest) ||
		slices.ContainsFunc(rec.GetSnapshots(), func(ref *nodev1.SnapshotRef) bool {
			return ref.GetDigest() == digest
		})
}

// StreamPrefix begins the digest of a VM that was sent to its destination and lies nowhere.
const StreamPrefix = "stream:"

// Unplaced reports whether an operation waits to be told where it goes.
func Unplaced(op *nodev1.Operation) bool { return op.GetByPlace() && op.GetDestination() == "" }

// fits reports whether a VM that is to be in a place may come into that of the caller; empty: into any.
func fits(place string, intent Intent) bool { return place == "" || place == intent.Place }

func decideOpen(vm string, rec *nodev1.Record, op *nodev1.Operation, node string, intent Intent) (Decision, error) {
	mine := op.GetDestination() == node && intent.Operation == op.GetId() && intent.Attempt == op.GetAttempt() &&
		op.GetPhase() < nodev1.Phase_PHASE_COMMITTED
	move := op.GetKind() == nodev1.Kind_KIND_MIGRATE
	switch {
	case mine && !fits(op.GetPlace(), intent):
		return Decision{}, fmt.Errorf("create VM %s: operation %s brings it to place %s, this is %q: %w", vm, op.GetId(),
			op.GetPlace(), intent.Place, errdefs.ErrFailedPrecondition)
	case mine && move && intent.Stream != nil:
		if g := intent.Stream.GetGeneration(); g != rec.GetGeneration() {
			return Decision{}, fmt.Errorf("receive VM %s of owner number %d: it has had %d: %w", vm, g, rec.GetGeneration(),
				errdefs.ErrFailedPrecondition)
		}
		return Decision{Action: Receive, Move: true}, nil
	case mine && intent.Stream == nil && intent.Digest == op.GetDigest() && op.GetDigest() != "" &&
		(move || op.GetKind() == nodev1.Kind_KIND_WAKE):
		return Decision{Action: Restore, Digest: op.GetDigest(), Repository: op.GetRepository(), Move: move}, nil
	}
	return Decision{}, fmt.Errorf("create VM %s: operation %s (%s to %q) is open: %w", vm, op.GetId(), op.GetKind(),
		op.GetDestination(), errdefs.ErrFailedPrecondition)
}
