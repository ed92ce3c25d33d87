package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// lines is a log that is read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Whichever call of a step fails, the log has its error with step, VM and operation. This holds also where the step
// is tried again and succeeds.
func TestErrorsReachTheLog(t *testing.T) {
	for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrInternal} {
		for _, o := range slices.Concat(orders, placedOrders) {
			t.Run(fmt.Sprint(o.name, " ", class), func(t *testing.T) {
				t.Parallel()
				for n := 1; logged(t, o.start(t), o.node, o.give, n, class); n++ {
				}
			})
		}
	}
}

// logged fails call n of an operation, and reports whether there is one.
func logged(t *testing.T, w *world, node string, give func(*world, *Engine, string) error, n int, class error) bool {
	log := &lines{}
	w.told = Log{slog.New(slog.NewJSONHandler(log, nil))}
	e := w.engine(node)
	defer e.Close()
	mark := fmt.Errorf("mark of call %d: %w", n, class)
	w.strike(fault{call: n, err: mark})
	if err := give(w, e, "op"); err != nil { // who ordered it was told
		if !errors.Is(err, class) {
			t.Errorf("call %d: %v", n, err)
		}
		return true
	}
	w.settle("op")
	<-e.idle("op")
	calls := w.calls()
	if over := slices.Index(calls, "Finish"); n > len(calls) || over >= 0 && over < n-1 { // a look after the last step
		return n <= len(calls)
	}
	text := log.String()
	if !strings.Contains(text, fmt.Sprintf("mark of call %d:", n)) || !strings.Contains(text, `"operation":"op"`) ||
		!strings.Contains(text, "default/web") {
		t.Errorf("%s, call %d of %v, fails with %v, and the log says: %s", calls[n-1], n, calls, class, text)
	}
	return true
}

// A node that comes back goes on with its pending deletions before anybody may do something else with
// the VM: what is open holds it. A VM that no record knows it leaves alone.
func TestPendingWorkComesFirst(t *testing.T) {
	for _, o := range orders {
		if o.node == "c" {
			continue
		}
		w := o.start(t)
		first := w.engine(o.node)
		w.strike(fault{call: 7, kill: first.close})
		if err := o.give(w, first, "op"); err != nil {
			t.Fatal(err)
		}
		<-first.idle("op")
		first.Close()
		w.strike(fault{})
		second := w.start(o.node)
		for name, err := range map[string]error{"hibernate": w.hibernate(second, "h"), "wake": w.wake(second, "w"),
			"checkpoint": w.checkpoint(second, "cp")} {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s before %s goes on: %v", name, o.name, err)
			}
		}
		if err := second.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
			t.Errorf("%s: %v", o.name, op)
		}
		w.check(o.name)
	}
	w := newWorld(t)
	n1 := w.start("n1")
	n1.opts.Grace = 1
	for range 3 {
		err := n1.Reconcile(t.Context(), func() ([]*nodev1.VM, error) {
			return []*nodev1.VM{vm, {Namespace: "default", Id: "unknown"}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if effects := w.effects(); len(effects) > 0 || w.stateAt("n1") != runs {
		t.Errorf("calls %v; a VM without a record is %q", effects, w.stateAt("n1"))
	}
}
