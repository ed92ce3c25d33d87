package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Limits of moves that are under way at once.
type Limits struct{ All, Out, In int }

// DefaultLimits are those of design and docs.
var DefaultLimits = Limits{All: 5, Out: 2, In: 2}

// waitError is no failure: the operation's turn has not come.
type waitError struct{ reason string }

func (e *waitError) Error() string { return e.reason }
func (e *waitError) Unwrap() error { return errdefs.ErrUnavailable }

func waiting(err error) bool { return errors.As(err, new(*waitError)) }

// queue gives the move a place, oldest first (N-30): one that waits holds up no other
// whose nodes are free.
func queue(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	e.placing.Lock()
	defer e.placing.Unlock()
	all, err := e.Records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return records(err)
	}
	if why := e.full(all.GetRecords(), op); why != "" {
		return &waitError{why}
	}
	if err := e.takes(op.GetDestination()); err != nil {
		return err
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_PREPARING})
}

// full says which limit op would exceed, or which older move goes first; empty: none.
func (e *Engine) full(all []*nodev1.Record, op *nodev1.Operation) string {
	n, out, in := 0, 0, 0
	for _, rec := range all {
		other := rec.GetOperation()
		if other.GetKind() != nodev1.Kind_KIND_MIGRATE || other.GetId() == op.GetId() {
			continue
		}
		if other.GetPhase() == nodev1.Phase_PHASE_PENDING && !older(other, op) {
			continue
		}
		n++
		if other.GetSource() == op.GetSource() {
			out++
		}
		if other.GetDestination() == op.GetDestination() {
			in++
		}
	}
	l := e.opts.Limits
	switch {
	case n >= l.All:
		return fmt.Sprintf("%d moves are under way or ahead (move.parallel)", n)
	case out >= l.Out:
		return fmt.Sprintf("%d moves from node %s are under way or ahead (move.outgoing)", out, op.GetSource())
	case in >= l.In:
		return fmt.Sprintf("%d moves to node %s are under way or ahead (move.incoming)", in, op.GetDestination())
	}
	return ""
}

func older(a, b *nodev1.Operation) bool {
	if a.GetOpenedUnixNano() != b.GetOpenedUnixNano() {
		return a.GetOpenedUnixNano() < b.GetOpenedUnixNano()
	}
	return a.GetId() < b.GetId()
}

// takes reports whether VMs may come to a node now.
func (e *Engine) takes(node string) error {
	info, err := e.Peers.Node(node)
	if err != nil {
		return err
	}
	return Takes(info)
}

// Takes is the refusal of a node that no VM may come to now, else nil.
func Takes(n *nodev1.NodeInfo) error {
	if err := Cordoned(n); err != nil {
		return err
	}
	if !n.GetUp() {
		return fmt.Errorf("node %s has not been heard lately (godwit nodes): %w", n.GetName(), errdefs.ErrUnavailable)
	}
	return nil
}

// Cordoned is the refusal of a node that is, else nil.
func Cordoned(n *nodev1.NodeInfo) error {
	if !n.GetCordoned() {
		return nil
	}
	return fmt.Errorf("node %s is cordoned (godwit uncordon %s): %w", n.GetName(), n.GetName(), errdefs.ErrFailedPrecondition)
}
