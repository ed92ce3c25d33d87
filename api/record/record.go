// Package record decides what a node may do with a VM from the VM's record alone. The
// record itself is the message of api/node/v1; its store and its transitions live in
// package migrate.
package record

import (
	"fmt"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Action is what a Create does.
type Action int

// What a Create can come to.
const (
	Refuse  Action = iota // the error says why
	Boot                  // fresh; the VM has no state anywhere
	Restore               // from Decision.Digest
)

// Intent is what the caller of Create asked for. The zero value asks for nothing.
type Intent struct {
	Operation string // id of the open wake
	Attempt   uint32
	Digest    string
}

// Set reports whether the caller asked for a restore.
func (i Intent) Set() bool { return i.Digest != "" }

// Decision of Decide.
type Decision struct {
	Action     Action
	Digest     string
	Repository string
	Lost       bool // a wake that nobody asked for: the caller says so in an event
}

// Decide is the one restore decision: every way to create a VM goes through it. rec may
// be nil on a node that keeps no records. No registry is asked and no tag looked at.
func Decide(rec *nodev1.Record, node string, intent Intent) (Decision, error) {
	if rec == nil {
		if intent.Set() {
			return Decision{}, fmt.Errorf("restore %s: no record names it as the VM's owner: %w", intent.Digest, errdefs.ErrFailedPrecondition)
		}
		return Decision{Action: Boot}, nil
	}
	vm := rec.GetVm().GetNamespace() + "/" + rec.GetVm().GetId()
	if op := rec.GetOperation(); op != nil {
		return decideOpen(vm, rec, op, node, intent)
	}
	switch owner := rec.GetOwner(); {
	case owner.GetDigest() != "":
		if intent.Set() && intent.Digest != owner.GetDigest() {
			return Decision{}, fmt.Errorf("restore VM %s from %s: its newest state is %s: %w", vm, intent.Digest, owner.GetDigest(), errdefs.ErrFailedPrecondition)
		}
		return Decision{Action: Restore, Digest: owner.GetDigest(), Repository: rec.GetRepository(), Lost: !intent.Set()}, nil
	case intent.Set():
		return Decision{}, fmt.Errorf("restore VM %s from %s: no snapshot owns it: %w", vm, intent.Digest, errdefs.ErrFailedPrecondition)
	case owner.GetNode() == "" || owner.GetNode() == node:
		return Decision{Action: Boot}, nil
	default:
		return Decision{}, fmt.Errorf("create VM %s: node %s owns it: %w", vm, owner.GetNode(), errdefs.ErrFailedPrecondition)
	}
}

func decideOpen(vm string, rec *nodev1.Record, op *nodev1.Operation, node string, intent Intent) (Decision, error) {
	mine := op.GetKind() == nodev1.Kind_KIND_WAKE && op.GetDestination() == node &&
		intent.Operation == op.GetId() && intent.Attempt == op.GetAttempt() && intent.Digest == op.GetDigest()
	if mine && op.GetPhase() < nodev1.Phase_PHASE_COMMITTED {
		return Decision{Action: Restore, Digest: op.GetDigest(), Repository: op.GetRepository()}, nil
	}
	return Decision{}, fmt.Errorf("create VM %s: operation %s (%s to %q) is open: %w", vm, op.GetId(), op.GetKind(), op.GetDestination(), errdefs.ErrFailedPrecondition)
}
