package moves

import (
	"context"
	"slices"
	"sync"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// maxPending to a controller that is out of reach; the log has them all.
const maxPending = 1024

// Outbox has the events of a node that its next announcement tells the controller: what the node does by
// itself. It is a part of the node's Speaker.
type Outbox struct {
	mu      sync.Mutex
	pending []*nodev1.MoveEvent // oldest first
}

var _ engine.Events = (*Outbox)(nil)

// Event implements engine.Events.
func (o *Outbox) Event(_ context.Context, ev engine.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kind := map[engine.Type]string{engine.Superseded: moves.Outlived, engine.Foreign: moves.Foreign}[ev.Type]
	if kind != "" && len(o.pending) < maxPending {
		o.pending = append(o.pending, &nodev1.MoveEvent{Type: kind, Vm: ev.VM, Reason: ev.Reason})
	}
}

// Untold implements Speaker.
func (o *Outbox) Untold() []*nodev1.MoveEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.pending[:min(len(o.pending), MaxTold)])
}

// Told implements Speaker.
func (o *Outbox) Told(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = slices.Clone(o.pending[n:])
}
