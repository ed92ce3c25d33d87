package record

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/errno"
)

// HeldError says who holds a VM that a call wanted: its owner, and the open operation
// if there is one. It is a FailedPrecondition.
type HeldError struct {
	Call   string
	Record *nodev1.Record
	text   string // as the server wrote it
}

// Error names the winner.
func (e *HeldError) Error() string {
	if e.text != "" {
		return e.text
	}
	return fmt.Sprintf("%s: %s: %s", e.Call, e.Holder(), errdefs.ErrFailedPrecondition)
}

// Unwrap gives the class.
func (e *HeldError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Holder tells in words who holds the VM.
func (e *HeldError) Holder() string {
	rec := e.Record
	if op := rec.GetOperation(); op != nil && !rec.GetRivals() {
		where := op.GetDestination()
		if where == "" {
			where = op.GetSource()
		}
		return fmt.Sprintf("operation %s (%s, node %s, %s) is open", op.GetId(), op.GetKind(), where, op.GetPhase())
	}
	who, lost := "nobody", IsLost(rec)
	switch owner := rec.GetOwner(); {
	case owner.GetNode() != "":
		who = "node " + owner.GetNode()
	case owner.GetDigest() != "":
		who, lost = "snapshot "+owner.GetDigest(), rec.GetRivals()
	}
	text := fmt.Sprintf("%s owns it at generation %d", who, rec.GetGeneration())
	if lost {
		text += ", and " + LostText(rec)
	}
	return text
}

// IsLost reports whether the VM is lost, by an operation or by a store that was put back from a
// copy. It is false once it is decided what becomes of what is left of the VM.
func IsLost(rec *nodev1.Record) bool {
	return rec.GetLost() != "" || KeptOf(rec) != nil || rec.GetConflict() != ""
}

// KeptOf is what a source still holds of a VM that its move has lost; nil: nothing.
func KeptOf(rec *nodev1.Record) *nodev1.Kept {
	if k := rec.GetKept(); !k.GetReclaimed() {
		return k
	}
	return nil
}

// LostText says what an operation that lost the VM has left, and what to do about it.
func LostText(rec *nodev1.Record) string {
	vm := rec.GetVm().GetNamespace() + "/" + rec.GetVm().GetId()
	var left, remedies []string
	if rec.GetRivals() {
		return "nobody can say whose it is: " + rec.GetConflict()
	}
	if c := rec.GetConflict(); c != "" {
		left = append(left, "with the records behind their copy: "+c)
	}
	if k := KeptOf(rec); k != nil {
		at := "at node " + k.GetDestination()
		if k.GetDestination() == "" {
			at = "where the store that was put back does not know"
		}
		left = append(left, fmt.Sprintf("%s, and node %s holds it as it was at the switch-over", at, k.GetNode()))
		remedies = append(remedies, fmt.Sprintf("take that back by godwit recover --from-source %s", vm))
	}
	if d := rec.GetLost(); d != "" {
		left = append(left, "after snapshot "+d)
		remedies = append(remedies, fmt.Sprintf("restore that by godwit wake --digest %s --force %s", d, vm))
	}
	remedies = append(remedies, "or give it up by godwit rm --force "+vm)
	return fmt.Sprintf("it was lost %s: %s", strings.Join(left, ", "), strings.Join(remedies, ", "))
}

// ToWire makes err fit for ttrpc: the class as code, the record of a HeldError as detail.
func ToWire(err error) error {
	if err == nil {
		return nil
	}
	var held *HeldError
	if errors.As(err, &held) {
		if st, serr := status.New(codes.FailedPrecondition, err.Error()).WithDetails(held.Record); serr == nil {
			return st.Err()
		}
	}
	return errgrpc.ToGRPC(Plain(err))
}

// Plain is err with its one class, which its text ends with, in one line. On the wire every further
// class that an error wraps becomes a line of its own at the user's end.
func Plain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		err = errgrpc.ToNative(err) // a status has its class in its code
	}
	e := &plain{text: strings.ReplaceAll(err.Error(), "\n", "; "), class: errno.Resolve(err)}
	if class := e.class.Error(); e.class != errdefs.ErrUnknown && !strings.HasSuffix(e.text, class) {
		e.text += ": " + class
	}
	return e
}

// Transient reports whether an error may pass by itself: such a one is tried again, all
// others are final.
func Transient(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || errdefs.IsResourceExhausted(err) ||
		errdefs.IsConflict(err)
}

// Stuck reports whether the order to delete a VM has failed for good: it is not tried again.
func Stuck(d *nodev1.Deletion) bool {
	return d.GetTries() > 0 && !Transient(ClassOf(d.GetClass()))
}

// Class names the class of err, for a record; ClassOf undoes it, with nil for no class.
func Class(err error) string {
	if class := errno.Resolve(err); class != nil && class != errdefs.ErrUnknown {
		return class.Error()
	}
	return ""
}

// ClassOf answers the class that Class has named.
func ClassOf(name string) error {
	for _, class := range []error{
		errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition,
		errdefs.ErrConflict,
		errdefs.ErrAborted, errdefs.ErrUnavailable, errdefs.ErrPermissionDenied, errdefs.ErrUnauthenticated,
		errdefs.ErrResourceExhausted,
		errdefs.ErrDataLoss, errdefs.ErrNotImplemented, errdefs.ErrOutOfRange, errdefs.ErrInternal, context.DeadlineExceeded,
	} {
		if class.Error() == name {
			return class
		}
	}
	return nil
}

type plain struct {
	text  string
	class error
}

func (e *plain) Error() string { return e.text }
func (e *plain) Unwrap() error { return e.class }

// FromWire undoes ToWire.
func FromWire(err error) error {
	if errors.Is(err, ttrpc.ErrClosed) {
		return fmt.Errorf("the connection was closed before the answer, and what was asked for may be done: %w: %w", err,
			errdefs.ErrUnavailable)
	}
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, d := range st.Details() {
		if rec, ok := d.(*nodev1.Record); ok {
			return &HeldError{Record: rec, text: st.Message()}
		}
	}
	return errgrpc.ToNative(err)
}

// NoStore is said where a snapshot has no place to go.
func NoStore(node string) error {
	return fmt.Errorf("node %s has no place for snapshots. To give it one, set registry.repository or registry.layout in "+
		"its configuration, and start godwitd again: %w", node, errdefs.ErrFailedPrecondition)
}
