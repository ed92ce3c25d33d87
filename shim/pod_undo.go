package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/retry"
)

// What no client wants any more may not go at once: a container whose Create failed, a disk that is unplugged. The
// guest does not answer, or the node's disk is full. The journal has it until it is gone, and its disk is not given
// away. No operation gets the VM until then: what no client knows would be in its snapshot, or go along. Only what a
// snapshot can say of may go along: a guest that never removes it keeps no VM from leaving its node.

// removals are of what could not be removed at once.
type removals struct {
	vm    *VM
	bound time.Duration // of one try
	mu    sync.Mutex
	all   []*removal // under way
}

type removal struct {
	what  string
	along bool                        // it may go along with an operation
	over  chan struct{}               // closed at its end, and at the VM's
	again func(context.Context) error // what was asked for meanwhile; removals.mu guards it
}

// takeBack undoes what a Create has made of its container.
func (c *memberCreation) takeBack(ctx context.Context) error {
	err := c.task.member.unmake(ctx)
	if err != nil {
		c.vm.pod.removals.later(fmt.Sprintf("container %s (%s)", c.task.id, c.task.guest), c.task.member.unmake)
	}
	return err
}

func (m *member) unmake(ctx context.Context) error {
	if m.t.guest == "" { // the journal has never had it
		return nil
	}
	if err := m.free(ctx); err != nil {
		return errors.Join(err, endHolder(ctx, m.holder)) // no client knows the process
	}
	return m.t.vm.pod.forget(ctx, m.t)
}

// unnamed is of a container whose id was not written down: the next one gets that id.
func (m *member) unnamed(err error) error {
	if err != nil {
		m.named("")
		m.hadEnded(nil)
	}
	return err
}

// free frees what a container has in the guest, and its sandbox process. A guest is asked of no container that the
// journal does not have: such an id is given again.
func (m *member) free(ctx context.Context) error {
	vm, guest := m.t.vm, m.t.guest
	if vm.inState(Running) && vm.spec().Pod.Member(guest) != nil {
		if err := removeContainer(ctx, vm.guest(), guest); err != nil && vm.inState(Running) {
			return err
		}
	}
	return endHolder(ctx, m.holder)
}

// later tries again what has failed, until the VM ends. One removal is under way at a time of each thing. One that is
// asked for meanwhile comes after it: the last try of the first may have been before what the second is for.
func (rs *removals) later(what string, remove func(context.Context) error) {
	rs.begin(&removal{what: what, over: make(chan struct{})}, remove)
}

// meanwhile is later for what no operation waits for.
func (rs *removals) meanwhile(what string, remove func(context.Context) error) {
	rs.begin(&removal{what: what, along: true, over: make(chan struct{})}, remove)
}

func (rs *removals) begin(r *removal, remove func(context.Context) error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if i := slices.IndexFunc(rs.all, func(other *removal) bool { return other.what == r.what }); i >= 0 {
		rs.all[i].again = remove
		return
	}
	rs.all = append(rs.all, r)
	go func() {
		defer close(r.over)
		for remove != nil {
			rs.untilGone(r.what, remove)
			remove = rs.next(r)
		}
	}()
}

// next answers what was asked for while r was under way; nil: nothing was, and r is over.
func (rs *removals) next(r *removal) func(context.Context) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	again := r.again
	r.again = nil
	if again == nil {
		rs.all = slices.DeleteFunc(rs.all, func(other *removal) bool { return other == r })
	}
	return again
}

func (rs *removals) untilGone(what string, remove func(context.Context) error) {
	ctx, cancel := context.WithCancel(rs.vm.life)
	defer cancel()
	go func() {
		select {
		case <-rs.vm.owner.initDone():
			cancel()
		case <-ctx.Done():
		}
	}()
	for pause := (retry.Backoff{Min: retryWait, Max: longestDenial}); ; {
		if pause.Wait(ctx); ctx.Err() != nil {
			return
		}
		bound, over := context.WithTimeout(ctx, rs.bound)
		err := remove(bound)
		over()
		if err == nil {
			rs.vm.log.Info("removed after all", "what", what)
			return
		}
		rs.vm.log.Warn("remove from guest: it is tried again", "what", what, "error", err)
	}
}

// over refuses an operation while something is being removed.
func (rs *removals) over() error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.all {
		if !r.along {
			return fmt.Errorf("%s is no longer wanted, and is still being removed from the guest: %w", r.what, errBusy)
		}
	}
	return nil
}

// await returns when none is under way. The VM has ended.
func (rs *removals) await(ctx context.Context) error {
	rs.mu.Lock()
	all := slices.Clone(rs.all)
	rs.mu.Unlock()
	for _, r := range all {
		select {
		case <-r.over:
		case <-ctx.Done():
			return fmt.Errorf("%s is still being removed: %w: %w", r.what, errdefs.ErrUnavailable, ctx.Err())
		}
	}
	return nil
}
