package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// stepLog writes down what it is told.
type stepLog struct {
	mu   sync.Mutex
	all  []string
	over []nodev1.Phase
}

func (l *stepLog) Begin(ctx context.Context, _ *nodev1.Operation, step string) (context.Context, func(error)) {
	return ctx, func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err != nil {
			step += " failed"
		}
		l.all = append(l.all, step)
	}
}

func (l *stepLog) Over(_ *nodev1.Operation, phase nodev1.Phase, _ string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = append(l.over, phase)
}

func (l *stepLog) told() (steps []string, over []nodev1.Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all), slices.Clone(l.over)
}

// lateStep has the end of each step be told late, after the end of the operation that the last one of them brings.
type lateStep struct{}

func (lateStep) Begin(ctx context.Context, _ *nodev1.Operation, _ string) (context.Context, func(error)) {
	return ctx, func(error) { time.Sleep(10 * time.Millisecond) }
}

func (lateStep) Over(*nodev1.Operation, nodev1.Phase, string) {}

// Each step of a move is told once, and so is its end after all of them. A step that fails is told as failed. The
// histogram has them by phase and result.
func TestStepsAreTold(t *testing.T) {
	w := liveWorld(t)
	registry := prometheus.NewRegistry()
	phases, err := NewPhaseMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	log := &stepLog{}
	e := w.start("c")
	e.Steps = []Steps{lateStep{}, phases, log}
	w.move(e, "m1", "n2", "live")
	w.until("the move's end is told", func() bool { _, over := log.told(); return len(over) == 1 })
	steps, over := log.told()
	if want := []string{"wait for a place", "check", "transfer", "switch", "run"}; !slices.Equal(steps[:len(want)],
		want) || over[0] != nodev1.Phase_PHASE_SUCCEEDED {
		t.Errorf("told %q, over %v", steps, over)
	}
	w.fences = true
	w.move(e, "m2", "n1", "cold")
	w.until("the second one's end is told", func() bool { _, over := log.told(); return len(over) == 2 })
	if _, over := log.told(); over[1] != nodev1.Phase_PHASE_FAILED {
		t.Errorf("over %v", over)
	}
	for phase, n := range map[string]float64{"pending": 2, "switching": 2, "cleaning": 1, "reverting": 1} {
		w.until(phase+" is counted", func() bool {
			value, ok := sampled(t, registry, "godwit_operation_phase_seconds", "migrate", phase, "ok")
			return ok && value == n
		})
	}
}
