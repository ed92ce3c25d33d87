package shim

import (
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/vmm"
)

func (w *world) pause() {
	w.t.Helper()
	_, err := w.service.Pause(ctxNS(w.t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
}

func (w *world) resume() {
	w.t.Helper()
	_, err := w.service.Resume(ctxNS(w.t), &taskapi.ResumeRequest{ID: "vm"})
	w.must("resume", err)
}

// giveBack is an abort by the controller.
func giveBack(w *world) {
	w.t.Helper()
	w.must("abort", w.abort())
}

// toldTime waits until the guest was told the time of now, and not one of before.
func (w *world) toldTime(what string, now time.Time) {
	w.t.Helper()
	var got []int64
	if !eventually(func() bool { got = w.agent.clock(); return len(got) > 0 }) {
		w.t.Errorf("%s: the guest's clock is late", what)
		return
	}
	if at := time.Unix(0, got[0]); at.Before(now) || at.After(time.Now()) {
		w.t.Errorf("%s: the guest was told %v, it is %v", what, at, now)
	}
}

// Whatever a VM stood still for, its guest is told the time when it goes on, and not before.
func TestClockAfterAStop(t *testing.T) {
	captured := func(w *world) {
		_, err := w.capture()
		w.must("capture", err)
	}
	for name, c := range map[string]struct{ stop, goOn func(*world) }{
		"pause":     {(*world).pause, (*world).resume},
		"hibernate": {captured, giveBack},
		"vote":      {func(w *world) { captured(w); w.must("vote", w.vote()) }, giveBack},
		"failed push": {func(*world) {}, func(w *world) {
			w.at("save state", func() error { return errFake })
			if _, err := w.capture(); err == nil {
				w.t.Error("a capture whose save fails has succeeded")
			}
		}},
		"checkpoint": {func(*world) {}, func(w *world) {
			_, err := w.checkpoint(false)
			w.must("checkpoint", err)
		}},
		"checkpoint of a paused": {func(w *world) {
			w.pause()
			_, err := w.checkpoint(true)
			w.must("checkpoint", err)
		}, (*world).resume},
		"failed pause": {func(*world) {}, func(w *world) {
			w.at("pause", func() error { return errFake })
			if _, err := w.service.Pause(ctxNS(w.t), &taskapi.PauseRequest{ID: "vm"}); err == nil {
				w.t.Error("a pause that fails has succeeded")
			}
		}},
		"full disk": {func(w *world) { w.machine.events <- vmm.Event{Kind: vmm.Paused} },
			func(w *world) { w.machine.events <- vmm.Event{Kind: vmm.Resumed} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).running()
			c.stop(w)
			if told := w.agent.clock(); len(told) > 0 {
				t.Errorf("a guest that stands still was told the time %d times", len(told))
			}
			now := time.Now()
			c.goOn(w)
			w.toldTime(name, now)
			w.at("save state", nil)
			w.at("pause", nil)
			vm, _ := w.service.current()
			vm.stopTraffic()
			if told := w.agent.clock(); len(told) >= clockTries { // of an answer that came late
				t.Errorf("it was told %d times more", len(told))
			}
		})
	}
}

// A VM that was adopted goes on as any.
func TestClockOfAnAdoptedVM(t *testing.T) {
	w := newWorld(t)
	_, m, _ := orphan(t, w, true)
	w.agent.clock()
	now := time.Now()
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.toldTime("a successor's abort", now)
}

// After a boot and a wake the time is not told again, as Restored tells it. A guest without an agent is never told.
func TestClockThatIsRight(t *testing.T) {
	quiet := func(w *world, what string) {
		t.Helper()
		vm, _ := w.service.current()
		vm.stopTraffic()
		if told := w.agent.clock(); len(told) > 0 {
			t.Errorf("%s: told %d times", what, len(told))
		}
	}
	w := newWorld(t).asleep()
	w.agent.clock()
	w.must("create", w.create())
	w.must("start", w.start())
	quiet(w, "a wake")

	w = newWorld(t)
	w.disk = true
	w.running()
	w.pause()
	w.resume()
	quiet(w, "a VM disk")
}

// No call waits for the clock: Resume does not, and an operation does not either: the clock is set after its abort.
func TestClockHoldsUpNoCall(t *testing.T) {
	w := newWorld(t).running()
	var asked atomic.Bool
	w.at("set clock", func() error {
		asked.Store(true)
		<-t.Context().Done()
		return nil
	})
	w.pause()
	w.resume()
	if !eventually(asked.Load) {
		t.Fatal("the guest's clock is late")
	}
	w.at("set clock", nil)
	w.agent.clock()
	_, err := w.capture()
	w.must("capture", err)
	if told := w.agent.clock(); len(told) > 0 {
		t.Errorf("a captured guest was told the time %d times", len(told))
	}
	now := time.Now()
	giveBack(w)
	w.toldTime("after an operation that came between", now)
}

// A guest that answers late has a clock that is late by that, and is told again, a few times. What goes wrong is logged
// once, however often it does. A guest of an earlier build is asked once a stop.
func TestClockThatIsNotSet(t *testing.T) {
	for name, c := range map[string]struct {
		answer func() error
		tries  int
		says   string
	}{
		"late":             {func() error { time.Sleep(2 * clockSlack); return nil }, clockTries, ""},
		"fails":            {func() error { return errFake }, clockTries, "after the next stop"},
		"an earlier build": {func() error { return errdefs.ErrNotImplemented }, 1, "earlier build"},
	} {
		t.Run(name, func(t *testing.T) {
			var said atomic.Int32
			w := newWorld(t)
			w.service.log = slog.New(slog.NewTextHandler(io.Discard,
				&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.MessageKey && c.says != "" && strings.Contains(a.Value.String(), c.says) {
						said.Add(1)
					}
					return a
				}}))
			w.running()
			w.at("set clock", c.answer)
			vm, _ := w.service.current()
			failed := func() bool { vm.clock.mu.Lock(); defer vm.clock.mu.Unlock(); return vm.clock.failed != "" }
			told := 0
			for range 3 {
				w.pause()
				w.resume()
				if !eventually(func() bool { told += len(w.agent.clock()); return told >= c.tries && failed() == (c.says != "") }) {
					t.Fatalf("told %d times, failed: %v", told, failed())
				}
				if told -= c.tries; told > 0 {
					t.Errorf("told %d times more", told)
				}
			}
			if n := said.Load(); n != 1 && c.says != "" {
				t.Errorf("said %d times", n)
			}
		})
	}
}

// A guest that is paused before it has answered hears of the time after that pause.
func TestClockOfAGuestThatIsPausedAgain(t *testing.T) {
	w := newWorld(t).running()
	w.at("set clock", func() error { w.at("set clock", nil); w.pause(); return errFake })
	w.pause()
	w.resume()
	vm, _ := w.service.current()
	if !eventually(func() bool { return vm.inState(Paused) }) {
		t.Fatal("it is not paused")
	}
	w.agent.clock()
	now := time.Now()
	w.resume()
	w.toldTime("paused again", now)
}
