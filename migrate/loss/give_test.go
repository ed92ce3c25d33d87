package loss

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A fence proves something of the VMs that its node had before it: one that is elsewhere
// since, or has been, is not taken.
func TestOnlyWhatWasFenced(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world)
		later  bool // while a node is chosen for it
		fences int
		orders int
	}{
		"elsewhere after the fence":   {func(w *world) { w.records[0].Owner.Node = "c" }, false, 1, 0},
		"elsewhere when it is chosen": {func(w *world) { w.records[0].Owner.Node = "c" }, true, 1, 0},
		"it went and came back":       {func(w *world) { w.records[0].Generation = 9 }, false, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, watcher := newWorld(t, "a", "b", "c")
			w.owns("b", "slept", time.Hour)
			once := func() {
				test.change(w)
				w.meddle, w.chosen = nil, nil
			}
			if w.meddle = once; test.later {
				w.meddle, w.chosen = nil, once
			}
			w.pass(watcher, time.Minute)
			w.pass(watcher, 5*time.Minute, "b")
			if len(w.fenced) != test.fences || len(w.ordered) != test.orders {
				t.Errorf("fenced %q, ordered %q", w.fenced, w.ordered)
			}
		})
	}
}

// A node that was fenced and comes back while another one is fenced is not lost any more. That
// also holds if it is silent again by then.
func TestBackDuringAnotherFence(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c", "d", "e", "f")
	w.owns("c", "slept", time.Hour)
	w.refuse = func(string) error { return errors.New("no room") }
	w.pass(watcher, time.Minute)
	w.pass(watcher, 5*time.Minute, "c")
	if !slices.Equal(w.fenced, []string{"c"}) || len(w.tried) == 0 {
		t.Fatalf("fenced %q, tried %q", w.fenced, w.tried)
	}
	w.owns("b", "other", time.Hour)
	w.refuse = func(string) error {
		if len(w.fenced) < 2 {
			return errors.New("no room")
		}
		return nil
	}
	w.meddle = func() {
		w.nodes["c"].SeenUnixNano = w.clock.UnixNano()
		w.clock = w.clock.Add(time.Hour)
		w.meddle = nil
	}
	for len(w.fenced) < 2 {
		w.pass(watcher, Interval, "b", "c")
	}
	w.pass(watcher, 30*time.Second, "b", "c")
	if slices.Contains(w.ordered, "new-slept") {
		t.Fatalf("c was heard: ordered %q", w.ordered)
	}
	w.pass(watcher, 5*time.Minute, "b", "c")
	if !slices.Equal(w.fenced, []string{"c", "b", "c"}) || !slices.Contains(w.ordered, "new-slept") {
		t.Errorf("silent again: fenced %q, ordered %q", w.fenced, w.ordered)
	}
}

// A node that is heard while its VMs are ordered elsewhere keeps the others.
func TestHeardAmongOrders(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	w.owns("b", "one", time.Hour)
	w.owns("b", "two", time.Hour)
	w.chosen = func() { w.nodes["b"].SeenUnixNano = w.clock.UnixNano() }
	w.pass(watcher, time.Minute)
	for len(w.tried) == 0 {
		w.pass(watcher, Interval, "b")
	}
	if len(w.tried) != 1 {
		t.Errorf("ordered %q", w.tried)
	}
}

// What an open operation has captured is newer than any listed snapshot.
func TestCapturedIsNewest(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	rec := w.owns("b", "slept", time.Hour)
	rec.Operation = &nodev1.Operation{
		Id: "m", Kind: nodev1.Kind_KIND_HIBERNATE, Source: "b", Digest: "captured",
		Phase: nodev1.Phase_PHASE_SWITCHING, OpenedUnixNano: w.clock.Add(time.Minute).UnixNano(),
	}
	w.pass(watcher, time.Minute)
	w.pass(watcher, 5*time.Minute, "b")
	w.want([]string{"b"}, []string{"captured"}, "NodeLost slept", "Recovering slept")
	for _, ev := range w.events {
		if !strings.Contains(ev.GetReason(), "captured") {
			t.Errorf("told: %s", ev.GetReason())
		}
	}
}

// A wake whose destination is gone is not under way. One wake had brought the VM to the lost
// node. One was to bring it from there to a node that is silent by now.
func TestWakeOfALostDestination(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c", "d", "e")
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		w.owns("b", id, time.Hour).Operation = &nodev1.Operation{Kind: nodev1.Kind_KIND_WAKE, Destination: "b",
			Phase: nodev1.Phase_PHASE_COMMITTED}
	}
	w.owns("b", "6", time.Hour).Operation = &nodev1.Operation{Kind: nodev1.Kind_KIND_WAKE, Destination: "c",
		Phase: nodev1.Phase_PHASE_TRANSFERRING}
	w.pass(watcher, time.Minute)
	w.pass(watcher, 5*time.Minute, "b", "c")
	if len(w.ordered) != parallel {
		t.Fatalf("ordered %q", w.ordered)
	}
	for _, rec := range w.records[:5] {
		rec.Operation, rec.Owner = nil, &nodev1.Owner{Node: "d"}
	}
	w.pass(watcher, Interval, "b", "c")
	if len(w.ordered) != 6 || w.ordered[5] != "new-6" {
		t.Errorf("ordered %q", w.ordered)
	}
}

// VMs that fail keep none of the others; they are tried ever less often, each time at another
// node, and told once.
func TestOneThatFails(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		w.owns("b", id, time.Hour)
	}
	w.refuse = func(vm string) error {
		if vm != "6" {
			return errors.New("no such image")
		}
		return nil
	}
	w.pass(watcher, time.Minute)
	w.pass(watcher, 20*time.Minute, "b")
	if !slices.Equal(w.ordered, []string{"new-6"}) {
		t.Errorf("ordered %q", w.ordered)
	}
	first := slices.DeleteFunc(w.tried, func(try string) bool { return !strings.HasPrefix(try, "1 ") })
	if len(first) < 4 || len(first) > 8 || first[0] != "1 a" || first[1] != "1 c" || first[2] != "1 a" {
		t.Errorf("tried %q", first)
	}
	if told := len(w.events); told != 6+5+1 {
		t.Errorf("told %d times: %v", told, w.events)
	}
}

// hanging takes an order, or an event, and never answers.
type hanging struct{ *world }

func (hanging) Recover(ctx context.Context, _ *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) Append(ctx context.Context, _ *nodev1.MoveEvent) error {
	<-ctx.Done()
	return ctx.Err()
}

// A node, or a store, that does not answer holds a look up for so long, not for ever.
func TestWithoutAnswers(t *testing.T) {
	for name, hang := range map[string]func(*Watcher, *world){
		"the node":  func(watcher *Watcher, w *world) { watcher.Mover = hanging{w} },
		"the store": func(watcher *Watcher, w *world) { watcher.Cluster = hanging{w} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, watcher := newWorld(t, "a", "b", "c")
				w.owns("b", "slept", time.Hour)
				w.pass(watcher, time.Minute)
				w.pass(watcher, time.Minute-Interval, "b")
				hang(watcher, w)
				begun := time.Now()
				for range 4 { // told, fenced, ordered
					w.clock = w.clock.Add(Interval)
					for _, name := range []string{"a", "c"} {
						w.nodes[name].SeenUnixNano = w.clock.UnixNano()
					}
					w.nodes["b"].Up = false
					_ = watcher.Look(t.Context())
				}
				if took := time.Since(begun); took < callBound || took > 2*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
