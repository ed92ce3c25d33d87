package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/turn"

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

// placement decides which move begins, and which nodes VMs may come to.
type placement struct {
	*core
	giving turn.Turn // one move takes a place at a time
	last   *view     // for those that wait; nil: not looked yet
}

// view is what moves that wait go by.
type view struct {
	at      time.Time
	records []*nodev1.Record
	nodes   map[string]*nodev1.NodeInfo
}

// queue gives the move a place, oldest first: one that waits holds up no other
// whose nodes are free.
func queue(ctx context.Context, e *Engine, rec *nodev1.Record) error {
	op := rec.GetOperation()
	p := e.placement
	if err := p.begin(ctx); err != nil {
		return err
	}
	defer p.giving.Give()
	for _, anew := range []bool{false, true} { // a place is given by what is true now
		if err := p.turn(ctx, op, anew); err != nil {
			return err
		}
	}
	if err := p.takes(op.GetDestination()); err != nil {
		return err
	}
	return e.advance(ctx, op, &nodev1.AdvanceRequest{Phase: nodev1.Phase_PHASE_PREPARING})
}

// begin waits for other moves that take their places.
func (p *placement) begin(ctx context.Context) error {
	if err := p.giving.Take(ctx); err != nil {
		return fmt.Errorf("wait for the places of other moves: %w", err)
	}
	return nil
}

// turn answers nil if it is a move's turn, by what its nodes are and by the moves before it. The caller has begun.
func (p *placement) turn(ctx context.Context, op *nodev1.Operation, anew bool) error {
	now, err := p.look(ctx, anew)
	if err != nil {
		return err
	}
	if err := p.silent(now.nodes, op); err != nil {
		return err
	}
	if why := p.full(now.records, now.nodes, op); why != "" {
		return &waitError{why}
	}
	return nil
}

// look is one for all that wait: a drain has hundreds of moves wait, and each of them asks twice a
// second. The caller has begun.
func (p *placement) look(ctx context.Context, anew bool) (*view, error) {
	if g := p.last; g != nil && !anew && time.Since(g.at) < queueInterval/2 {
		return g, nil
	}
	all, err := p.Records.List(ctx, &nodev1.ListRequest{Moves: true})
	if err != nil {
		return nil, records(err)
	}
	g := &view{at: time.Now(), records: all.GetRecords(), nodes: map[string]*nodev1.NodeInfo{}}
	for _, n := range p.Peers.Nodes() {
		g.nodes[n.GetName()] = n
	}
	p.last = g
	return g, nil
}

// silent has a move wait while one of its nodes has not been heard lately. It ends the move once that has lasted
// for as long as the move itself may take.
func (p *placement) silent(nodes map[string]*nodev1.NodeInfo, op *nodev1.Operation) error {
	for _, name := range []string{op.GetSource(), op.GetDestination()} {
		n := nodes[name]
		if n == nil || n.GetUp() {
			continue
		}
		since, limit := time.Unix(0, max(op.GetOpenedUnixNano(), n.GetSeenUnixNano())), p.timeout(op)
		if p.now().Sub(since) >= limit {
			return fmt.Errorf("node %s has not been heard for %v, which is the move's timeout (godwit nodes): %w", name, limit,
				errdefs.ErrAborted)
		}
		return &waitError{unheard(n).Error()}
	}
	return nil
}

// full says which limit op would exceed once each older move that can begin has done so; empty: none. An older move
// cannot begin if a node of its own has no place, takes no VMs or is silent. Such a move keeps no other from
// beginning.
func (p *placement) full(all []*nodev1.Record, nodes map[string]*nodev1.NodeInfo, op *nodev1.Operation) string {
	var placed, ahead []*nodev1.Operation
	for _, rec := range all {
		other := rec.GetOperation()
		switch {
		case other.GetKind() != nodev1.Kind_KIND_MIGRATE || other.GetId() == op.GetId():
		case other.GetPhase() != nodev1.Phase_PHASE_PENDING:
			placed = append(placed, other)
		case age(other, op) < 0 && nodes[other.GetSource()].GetUp() && Takes(nodes[other.GetDestination()]) == nil:
			ahead = append(ahead, other)
		}
	}
	slices.SortFunc(ahead, age)
	for _, other := range ahead {
		if p.exceeds(placed, other) == "" {
			placed = append(placed, other)
		}
	}
	return p.exceeds(placed, op)
}

// exceeds says which limit op would exceed in addition to those that have their places; empty: none.
func (p *placement) exceeds(placed []*nodev1.Operation, op *nodev1.Operation) string {
	out, in := 0, 0
	for _, other := range placed {
		if other.GetSource() == op.GetSource() {
			out++
		}
		if other.GetDestination() == op.GetDestination() {
			in++
		}
	}
	l := p.opts.Limits
	switch {
	case len(placed) >= l.All:
		return fmt.Sprintf("%d moves are under way or ahead (move.parallel)", len(placed))
	case out >= l.Out:
		return fmt.Sprintf("%d moves from node %s are under way or ahead (move.outgoing)", out, op.GetSource())
	case in >= l.In:
		return fmt.Sprintf("%d moves to node %s are under way or ahead (move.incoming)", in, op.GetDestination())
	}
	return ""
}

// age orders operations, the oldest first.
func age(a, b *nodev1.Operation) int {
	return cmp.Or(cmp.Compare(a.GetOpenedUnixNano(), b.GetOpenedUnixNano()), strings.Compare(a.GetId(), b.GetId()))
}

// takes reports whether VMs may come to a node now.
func (p *placement) takes(node string) error {
	info, err := p.Peers.Node(node)
	if err != nil {
		return err
	}
	return Takes(info)
}

// Takes is the refusal of a node that no VM may come to now, else nil.
func Takes(n *nodev1.NodeInfo) error {
	if n.GetControllerOnly() {
		return fmt.Errorf("%s is a controller without VMs; to see the nodes: godwit nodes: %w", n.GetName(),
			errdefs.ErrFailedPrecondition)
	}
	if err := Cordoned(n); err != nil {
		return err
	}
	if !n.GetUp() {
		return unheard(n)
	}
	return nil
}

func unheard(n *nodev1.NodeInfo) error {
	return fmt.Errorf("node %s has not been heard lately (godwit nodes): %w", n.GetName(), errdefs.ErrUnavailable)
}

// Cordoned is the refusal of a node that is, else nil.
func Cordoned(n *nodev1.NodeInfo) error {
	if !n.GetCordoned() {
		return nil
	}
	return fmt.Errorf("node %s is cordoned (godwit uncordon %s): %w", n.GetName(), n.GetName(),
		errdefs.ErrFailedPrecondition)
}
