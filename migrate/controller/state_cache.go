package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// stateMaxAge is how old the store's state may be in the answer to a heartbeat. Each node gives one every
// few seconds and acts on the last answer until the next one, so that its age hardly changes.
const stateMaxAge = time.Second

// stateCache reads the state once for all who ask within that time.
type stateCache struct {
	store store.Incarnations

	mu   sync.Mutex
	last *stateRead // nil: none, or one that does not count any more
}

// stateRead is one read. state and err are known once done is closed.
type stateRead struct {
	begun time.Time
	done  chan struct{}
	state *nodev1.StoreState
	err   error
}

// State answers a state that was read at most stateMaxAge ago, or that a mirror of the store has. One that nodes must
// do something about is read anew for each of them.
func (r *stateCache) State(ctx context.Context) (*nodev1.StoreState, error) {
	if m, ok := r.store.(store.Mirror); ok {
		if state, fresh := m.StateCached(); fresh && !concerns(state) {
			return state, nil
		}
	}
	r.mu.Lock()
	read, mine := r.last, false
	if read == nil || time.Since(read.begun) >= stateMaxAge {
		read, mine = &stateRead{begun: time.Now(), done: make(chan struct{})}, true
		r.last = read
	}
	r.mu.Unlock()
	if mine {
		read.state, read.err = r.store.State(context.WithoutCancel(ctx)) // others wait for it
		if read.err != nil || concerns(read.state) {
			r.forget(read)
		}
		close(read.done)
	}
	select {
	case <-read.done:
		return read.state, read.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// concerns reports whether nodes must do something about a state.
func concerns(s *nodev1.StoreState) bool {
	return s.GetWaiting() || s.GetBehind() != nil ||
		slices.ContainsFunc(s.GetDoubts(), func(d *nodev1.Doubt) bool { return !d.GetRefuted() })
}

// forget has the next one read the store; nil: whatever was read before.
func (r *stateCache) forget(read *stateRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if read == nil || r.last == read {
		r.last = nil
	}
}
