package shim

import (
	"fmt"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
)

// isHeld fails a call during which the agent's channel does not stand still, or does.
func (w *world) isHeld(during string, want bool) func() error {
	return func() error {
		if held := w.agent.held.Load(); held != want {
			return fmt.Errorf("during %s: the channel is held: %v", during, held)
		}
		return nil
	}
}

// QEMU hands what the guest had written before its pause to the host when it reads, and that changes RAM. So nothing of
// it is taken from before the state is saved until the VM runs.
func TestChannelIsHeldWhileRAMIsRead(t *testing.T) {
	for name, capture := range map[string]func(w *world) error{
		"checkpoint": func(w *world) error { _, err := w.checkpoint(false); return err },
		"hibernate":  func(w *world) error { _, err := w.capture(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			for _, during := range []string{"save state", "push", "resume"} {
				w.at(during, w.isHeld(during, true))
			}
			w.at("pause", w.isHeld("pause", false))
			w.must(name, capture(w))
			if name == "hibernate" {
				if !w.agent.held.Load() {
					t.Error("the channel flows before the controller has decided")
				}
				w.must("abort", w.abort())
			}
			w.wantFree(name)
			if w.agent.held.Load() {
				t.Error("the VM runs, and its channel stands still")
			}
		})
	}
}

// A task that was paused before stays so: the next snapshot of it has the state of the first one.
func TestChannelIsHeldWhileTheTaskIsPaused(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	_, err = w.checkpoint(true)
	w.must("checkpoint", err)
	if !w.agent.held.Load() {
		t.Error("the channel flows after the checkpoint of a paused task")
	}
	_, err = w.service.Resume(ctxNS(t), &taskapi.ResumeRequest{ID: "vm"})
	w.must("resume", err)
	if w.agent.held.Load() {
		t.Error("the VM runs, and its channel stands still")
	}
}
