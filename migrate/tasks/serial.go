package tasks

import (
	"context"
	"fmt"
	"sync"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// serial lets calls about one VM come one after the other: two controllers may order the
// same at once, and each call looks at what is there before it makes or ends anything. Its
// zero value is ready.
type serial struct {
	mu   sync.Mutex
	busy map[string]*turn
}

type turn struct {
	free    chan struct{} // holds one token while no call has the VM
	waiting int           // those that have or want it
}

// lock waits for the VM within ctx. The caller calls unlock, once.
func (s *serial) lock(ctx context.Context, vm *nodev1.VM) (unlock func(), err error) {
	key := vm.GetNamespace() + "/" + vm.GetId()
	s.mu.Lock()
	if s.busy == nil {
		s.busy = map[string]*turn{}
	}
	t := s.busy[key]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		s.busy[key] = t
	}
	t.waiting++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(s.busy, key)
		}
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for another call about VM %s: %w", key, ctx.Err())
	}
}
