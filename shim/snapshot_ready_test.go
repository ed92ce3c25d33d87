package shim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
)

func init() { readyEvery = 5 * time.Millisecond }

// asked is a VM that is asked whether it is ready, and answers so.
func asked(t *testing.T, answers func(n int) int) *world {
	t.Helper()
	w := newWorld(t)
	w.notes["godwit.dev/ready"] = "/bin/ready now"
	w.agent.answers = func(n int, _ string) int { return answers(n) }
	return w
}

// captures are the operations that ask.
var captures = map[string]func(*world) error{
	"hibernate":  func(w *world) error { _, err := w.capture(); return errgrpc.ToNative(err) },
	"checkpoint": func(w *world) error { _, err := w.checkpoint(false); return errgrpc.ToNative(err) },
}

// A capture waits until the workload says that it is ready. Until then no operation holds the VM, and no page is looked
// at.
func TestReady(t *testing.T) {
	for name, take := range captures {
		t.Run(name, func(t *testing.T) {
			w := asked(t, func(n int) int { return max(0, 3-n) })
			w.running()
			vm, _ := w.service.current()
			w.at("start process", func() error {
				if !vm.inState(Running) || vm.journal.Load().Phase != journal.Own {
					t.Errorf("the VM is %s (%s) while it is asked", vm.state, vm.journal.Load().Phase)
				}
				return nil
			})
			w.must(name, take(w))
			if got := fmt.Sprint(w.agent.commands()); got != "[/bin/ready now /bin/ready now /bin/ready now]" {
				t.Errorf("it was asked by %s", got)
			}
			if left := w.agent.kept(); len(left) > 0 {
				t.Errorf("the guest keeps %v", left)
			}
			w.must("the same order again", take(w))
			if n := len(w.agent.commands()); n != 3 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
}

// A workload that is never ready, or cannot be asked, is left as it was, by an error that says what to do. What was run
// in it has ended. The next order finds it ready.
func TestNotReady(t *testing.T) {
	ready := false
	for name, c := range map[string]struct {
		answer int
		starts error
		is     func(error) bool
		says   string
	}{
		"never":    {1, nil, errdefs.IsDeadlineExceeded, "last answer: status 1"},
		"it hangs": {-1, nil, errdefs.IsDeadlineExceeded, "last answer: none"},
		"no such thing": {0, fmt.Errorf("exec: /bin/ready: %w", errdefs.ErrNotFound), errdefs.IsFailedPrecondition,
			"cannot be run"},
		"agent gone": {0, fmt.Errorf("the session has ended: %w", errdefs.ErrUnavailable), errdefs.IsUnavailable,
			"ask whether it is ready"},
	} {
		for kind, take := range captures {
			t.Run(name+" "+kind, func(t *testing.T) {
				ready = false
				w := asked(t, func(int) int {
					if ready {
						return 0
					}
					return c.answer
				})
				w.running()
				w.cfg.Timeouts.Ready = cfgDuration(100 * time.Millisecond)
				w.at("start process", func() error { return c.starts })
				err := take(w)
				if !c.is(err) || !strings.Contains(err.Error(), c.says) || errdefs.IsNotFound(err) {
					t.Fatalf("%v", err)
				}
				if !errdefs.IsUnavailable(err) && (!strings.Contains(err.Error(), "godwit.dev/ready") ||
					!strings.Contains(err.Error(), "/bin/ready now")) {
					t.Errorf("it does not say what to do: %v", err)
				}
				w.wantFree("not ready")
				if c.starts == nil && !eventually(func() bool { return len(w.agent.kept()) == 0 }) {
					t.Errorf("the guest keeps %v", w.agent.kept())
				}
				w.at("start process", nil)
				ready, w.aborted = true, 1
				w.must("capture a VM that is ready", take(w))
			})
		}
	}
}

// The Spec's own time goes before the node's.
func TestReadyTimeoutOfTheSpec(t *testing.T) {
	w := asked(t, func(n int) int { return min(1, max(0, 30-n)) })
	w.notes["godwit.dev/ready-timeout"] = "1h"
	w.running()
	w.cfg.Timeouts.Ready = cfgDuration(20 * time.Millisecond)
	_, err := w.capture()
	w.must("capture", err)
}

// An order that is taken back while the workload is asked takes no VM later.
func TestAbortedBeforeItIsReady(t *testing.T) {
	w := asked(t, func(int) int { return 1 })
	w.running()
	done := make(chan error, 1)
	go func() { _, err := w.capture(); done <- errgrpc.ToNative(err) }()
	if !eventually(func() bool { return len(w.agent.commands()) > 0 }) {
		t.Fatal("it is not asked")
	}
	_, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if err := <-done; !errdefs.IsAborted(err) {
		t.Errorf("capture = %v", err)
	}
	w.wantFree("aborted")
}

// What somebody has paused cannot be asked, and is refused by name.
func TestPausedIsNotReady(t *testing.T) {
	w := asked(t, func(int) int { return 0 })
	w.running()
	_, err := w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	_, err = w.checkpoint(true)
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "godwit.dev/ready") {
		t.Errorf("checkpoint of a paused task: %v", err)
	}
	if n := len(w.agent.commands()); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}

// A shim that dies while it asks leaves no command that its successor takes for an answer:
// each has a name of its own.
func TestReadyIsAskedAnew(t *testing.T) {
	w := asked(t, func(n int) int { return max(0, 3-n) })
	w.running()
	_, err := w.capture()
	w.must("capture", err)
	seen := map[string]bool{}
	for _, said := range w.agent.heard() {
		if id, ok := strings.CutPrefix(said, `start "/`); ok && !seen[id] {
			seen[id] = true
		} else if ok {
			t.Errorf("%s was started twice", id)
		}
	}
	if len(seen) != 3 {
		t.Errorf("started: %v", seen)
	}
}
