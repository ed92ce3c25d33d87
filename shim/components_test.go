package shim

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/vmm"

	"context"
)

// What a call answers about a component, while it holds the VM's lock, waits for no lock of the VM's.
func TestComponentsAnswerUnderTheVMsLock(t *testing.T) {
	vm := bareVM(t, nil)
	vm.nic.connectedTo("cni")
	vm.vmm.note(vmm.Facts{Version: "7"})
	vm.vmm.starts(1)
	done := make(chan struct{})
	vm.mu.Lock()
	defer vm.mu.Unlock()
	go func() {
		defer close(done)
		if vm.nic.connection() != "cni" || vm.nic.wiring() != nil || vm.postcopy.filling() != nil ||
			vm.tracking.known() != "" {
			t.Error("a component does not know its state")
		}
		if vm.vmm.killedForMemory(1) || vm.vmm.reason() != "" || vm.vmm.facts().Version != "7" || vm.vmm.copied() {
			t.Error("the facts of the VMM are not those that were noted")
		}
	}()
	answered := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	if !eventually(answered) {
		t.Error("a component waits for the VM's lock")
	}
}

// clockless is a guest whose clock cannot be set: it is all that a guestClock needs of a VM.
type clockless struct {
	Agent
	err   error
	still bool
	asked int
}

func (c *clockless) guest() Agent         { return c }
func (c *clockless) pausedByClient() bool { return c.still }
func (c *clockless) SetClock(context.Context, *agentv1.SetClockRequest) (*agentv1.SetClockResponse, error) {
	c.asked++
	return nil, c.err
}

// A clock that cannot be set is logged once for each reason, and a VM that stands still is not asked.
func TestGuestClockLogsAReasonOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		g := &clockless{err: errors.New("no RTC")}
		c := newGuestClock(g, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); c.keep(ctx) }()
		stop := func() { c.noteResumed(); synctest.Wait() }
		stop()
		stop()
		if n := strings.Count(log.String(), "no RTC"); n != 1 {
			t.Errorf("it was logged %d times:\n%s", n, log.String())
		}
		g.err = errdefs.ErrNotImplemented
		stop()
		if !strings.Contains(log.String(), "earlier build") {
			t.Errorf("another reason is not logged:\n%s", log.String())
		}
		asked := g.asked
		g.still = true
		stop()
		if g.asked != asked {
			t.Error("a guest that stands still was asked")
		}
		cancel()
		<-over
	})
}
