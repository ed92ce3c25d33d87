package dashboard

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Source answers what the page shows: the calls of godwit ps, nodes, migrations and snapshot ls.
type Source interface {
	VMs(ctx context.Context, req *nodev1.VMsRequest) (*nodev1.VMsResponse, error)
	Snapshots(ctx context.Context, req *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error)
	Status(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error)
	Cluster
}

// Cluster is what the controller is asked.
type Cluster interface {
	Nodes(ctx context.Context, req *nodev1.NodesRequest) (*nodev1.NodesResponse, error)
	Moves(ctx context.Context, req *nodev1.MovesRequest) (*nodev1.MovesResponse, error)
}

// How often a list is read, however many look at it, and how long one answer may take.
const (
	fresh   = time.Second
	patient = 4 * time.Second
	rare    = 30 * time.Second // for all snapshots of all VMs
)

// list is the last answer to one question. An error is no answer: the one before it stays, with its age.
type list[T any] struct {
	Value T
	At    time.Time // of Value; zero: there was none yet
	Error string    // of the last try; empty: Value is its answer
}

// Stale tells whether Value is old.
func (l list[T]) Stale() bool { return l.Error != "" }

// Never tells whether nothing was read yet.
func (l list[T]) Never() bool { return l.At.IsZero() }

func (l *list[T]) take(value T, err error, now time.Time) {
	if err != nil {
		l.Error = err.Error()
		return
	}
	l.Value, l.At, l.Error = value, now, ""
}

// state is what is known.
type state struct {
	VMs   list[*nodev1.VMsResponse]
	Nodes list[*nodev1.NodesResponse]
	Moves list[*nodev1.MovesResponse]
	// Under are the operations of VMs that are under way and no moves, by id.
	Under map[string]*nodev1.StatusResponse
	// Snapshots are those of all VMs, read rarely: they tell since when a VM sleeps.
	Snapshots list[*nodev1.SnapshotsResponse]
	rarely    time.Time // when Snapshots was tried
	tried     time.Time
}

// looker reads each list once for all that look.
type looker struct {
	flight singleflight.Group
	mu     sync.Mutex
	last   state
}

// state answers what is known now. It waits for an answer no longer than ctx and patient say.
func (p *Page) state(ctx context.Context) state {
	if last := p.look.get(); p.Now().Sub(last.tried) < fresh {
		return last
	}
	done := p.look.flight.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patient)
		defer cancel()
		next := p.read(ctx, p.look.get())
		p.look.set(next)
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	return p.look.get()
}

func (l *looker) get() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *looker) set(next state) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = next
}

// read asks for all lists at once: one that hangs holds up no other.
func (p *Page) read(ctx context.Context, next state) state {
	var group errgroup.Group
	group.Go(func() error {
		vms, err := p.Source.VMs(ctx, &nodev1.VMsRequest{})
		next.VMs.take(vms, err, p.Now())
		if err == nil {
			next.Under = p.under(ctx, vms)
		}
		return nil
	})
	group.Go(func() error {
		nodes, err := p.Source.Nodes(ctx, &nodev1.NodesRequest{})
		next.Nodes.take(nodes, err, p.Now())
		return nil
	})
	group.Go(func() error {
		moves, err := p.Source.Moves(ctx, &nodev1.MovesRequest{})
		next.Moves.take(moves, err, p.Now())
		return nil
	})
	if p.Now().Sub(next.rarely) >= rare {
		next.rarely = p.Now()
		group.Go(func() error {
			snapshots, err := p.Source.Snapshots(ctx, &nodev1.SnapshotsRequest{})
			next.Snapshots.take(snapshots, err, p.Now())
			return nil
		})
	}
	_ = group.Wait() // an error is part of its list
	next.tried = p.Now()
	return next
}

// maxUnder bounds the operations that are asked for, at each look.
const maxUnder = 64

// under asks how far the operations are that are no moves. One that does not answer is shown without progress.
func (p *Page) under(ctx context.Context, vms *nodev1.VMsResponse) map[string]*nodev1.StatusResponse {
	found := map[string]*nodev1.StatusResponse{}
	for _, vm := range vms.GetVms() {
		op := vm.GetOperation()
		if op == nil || op.GetKind() == nodev1.Kind_KIND_MIGRATE || len(found) == maxUnder {
			continue
		}
		found[op.GetId()] = &nodev1.StatusResponse{Operation: op}
		if status, err := p.Source.Status(ctx, &nodev1.StatusRequest{Operation: op.GetId()}); err == nil {
			found[op.GetId()] = status
		}
	}
	return found
}
