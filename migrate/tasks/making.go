package tasks

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// making are the Creates under way, so that an Undo need not wait for what it is about to remove. The caller has
// left, but ttrpc tells a handler no such thing. A cold move would go on to pull its snapshot until the operation's
// deadline. Its zero value is ready.
type making struct {
	mu  sync.Mutex
	all map[*made]struct{}
}

type made struct {
	what   string
	cancel context.CancelCauseFunc
}

func whatOf(vm *nodev1.VM, intent record.Intent) string {
	return vm.GetNamespace() + "/" + vm.GetId() + " " + orderMark(intent)
}

// begin answers the ctx of a Create. The caller calls end, once.
func (m *making) begin(ctx context.Context, vm *nodev1.VM, intent record.Intent) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &made{what: whatOf(vm, intent), cancel: cancel}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[*made]struct{}{}
	}
	m.all[c] = struct{}{}
	return ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.all, c)
		cancel(nil)
	}
}

// stop ends the Creates of that order, which undo what they have made.
func (m *making) stop(vm *nodev1.VM, intent record.Intent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.all {
		if c.what == whatOf(vm, intent) {
			c.cancel(fmt.Errorf("its order was undone meanwhile: %w", errdefs.ErrAborted))
		}
	}
}
