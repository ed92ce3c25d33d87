package shim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
)

// lingering is a guest that takes its time to forget an exec.
type lingering struct {
	*fakeAgent
	removed atomic.Int64
}

func (l *lingering) Remove(ctx context.Context, _ *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	select {
	case <-time.After(forgetBound * 9 / 10):
		l.removed.Add(1)
		return &agentv1.RemoveResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A guest that is slow to forget execs keeps no operation from its VM, however many they are and however often one is
// deleted. It hears of all in the end.
func TestGuestThatIsSlowToForget(t *testing.T) {
	for _, deleted := range []time.Duration{time.Hour, 10 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			guest := &lingering{fakeAgent: newFakeAgent(&faults{})}
			vm := bareVM(t, guest)
			const many = 60
			vm.journal.Begin(t.TempDir(), &journal.Journal{Resources: journal.Resources{Spec: &spec.Spec{}}})
			vm.mu.Lock()
			vm.state = Running
			for n := range many {
				owe(vm, fmt.Sprint(n))
			}
			forgetSoon(vm)
			vm.mu.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for n := 0; ctx.Err() == nil; n++ {
					time.Sleep(deleted)
					vm.mu.Lock()
					owe(vm, fmt.Sprintf("late %d", n))
					forgetSoon(vm)
					vm.mu.Unlock()
				}
			}()
			for order := range 10 {
				err := whileBusy(t.Context(), func() error {
					vm.mu.Lock()
					defer vm.mu.Unlock()
					if vm.op.calls > 0 {
						return errBusy
					}
					return nil
				})
				if errors.Is(err, errBusy) {
					t.Errorf("deleted each %v: order %d: %v", deleted, order, err)
					break
				}
				time.Sleep(1700 * time.Millisecond)
			}
			cancel()
			time.Sleep(max(deleted, time.Minute))
			vm.startTraffic()
			time.Sleep(time.Hour)
			vm.stopTraffic()
			if n := guest.removed.Load(); n < many {
				t.Errorf("it has forgotten %d of %d", n, many)
			}
			vm.mu.Lock()
			defer vm.mu.Unlock()
			if n := len(vm.traffic.owed); n > 0 {
				t.Errorf("%d are owed still", n)
			}
		})
	}
}

// What is owed to a guest that never answers is bounded.
func TestOwedIsBounded(t *testing.T) {
	vm := bareVM(t, newFakeAgent(&faults{}))
	for n := range 2 * maxOwed {
		owe(vm, fmt.Sprint(n))
	}
	if n := len(vm.traffic.owed); n != maxOwed || vm.traffic.owed[n-1] != fmt.Sprint(2*maxOwed-1) {
		t.Errorf("%d are owed", n)
	}
}
