package control

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/kubernetes/operator"
)

const (
	// askBound of one call to a node. An order has to be durable by then.
	askBound = 3 * time.Second
	// askSlow is how long a call may take before no other one of that node is begun.
	askSlow = time.Second
	// askRest is how long a node is asked nothing that has let a call time out. The next call is alone.
	askRest = 15 * time.Second
	// asksOfNode are under way at once, of the operator's workers: other nodes' orders have the rest.
	asksOfNode = 4
)

// asks bounds how many workers a node holds, and for how long: one that hangs, or is dead and does not say so. Its
// orders wait. Those of other nodes do not.
type asks struct {
	mu sync.Mutex
	of map[string]*asksAt
}

// asksAt is what is under way at a node.
type asksAt struct {
	begun []time.Time
	late  bool      // the last call that has ended has timed out
	rests time.Time // until then
}

// do makes a call to a node. What is not begun is refused: ErrTurn where its turn comes soon.
func (a *asks) do(ctx context.Context, node string, call func(context.Context) error) error {
	begun, err := a.begin(node)
	if err != nil {
		return err
	}
	bound, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	err = call(bound)
	late := err != nil && bound.Err() != nil && ctx.Err() == nil
	a.end(node, begun, late)
	if late {
		return mute(node)
	}
	return err
}

// mute has one text, so that the status of an order which waits is written once.
func mute(node string) error {
	return fmt.Errorf("node %s does not answer within %v: %w", node, askBound, errdefs.ErrUnavailable)
}

func (a *asks) begin(node string) (time.Time, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, now := a.of[node], time.Now()
	if n == nil {
		n = &asksAt{}
	}
	most := asksOfNode
	if n.late {
		most = 1
	}
	switch {
	case now.Before(n.rests):
		return now, mute(node)
	case len(n.begun) >= most, len(n.begun) > 0 && now.Sub(n.begun[0]) > askSlow:
		return now, fmt.Errorf("node %s: %w", node, operator.ErrTurn)
	}
	if a.of == nil {
		a.of = map[string]*asksAt{}
	}
	a.of[node], n.begun = n, append(n.begun, now)
	return now, nil
}

func (a *asks) end(node string, begun time.Time, late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.of[node]
	i := slices.Index(n.begun, begun)
	n.begun = slices.Delete(n.begun, i, i+1)
	if n.late = late; late {
		n.rests = time.Now().Add(askRest)
	} else if len(n.begun) == 0 {
		delete(a.of, node)
	}
}
