package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Steps is told of what the engine does. It must not block.
type Steps interface {
	// Begin answers the ctx of one try of a step, and what is called at its end. A try that
	// finds out that its turn has not come has no end.
	Begin(ctx context.Context, op *nodev1.Operation, step string) (context.Context, func(error))
	// Over tells that op, as it was before, is settled.
	Over(op *nodev1.Operation, phase nodev1.Phase, reason string)
}

func (e *Engine) begin(ctx context.Context, op *nodev1.Operation, step string) (context.Context, func(error)) {
	ends := make([]func(error), len(e.Steps))
	for i, s := range e.Steps {
		ctx, ends[i] = s.Begin(ctx, op, step)
	}
	return ctx, func(err error) {
		for _, end := range ends {
			if !waiting(err) {
				end(err)
			}
		}
	}
}

// PhaseMetrics are of the tries of steps, by the phase that an operation was in.
type PhaseMetrics struct {
	seconds *prometheus.HistogramVec
	now     func() time.Time
}

// NewPhaseMetrics registers them.
func NewPhaseMetrics(registry prometheus.Registerer) (*PhaseMetrics, error) {
	m := &PhaseMetrics{now: time.Now, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "godwit_operation_phase_seconds",
		Help:    "What this node has done in a phase of operations that it drives; of Pending, how long they waited.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
	}, []string{"kind", "phase", "result"})}
	if err := registry.Register(m.seconds); err != nil {
		return nil, fmt.Errorf("register metrics of phases: %w", err)
	}
	return m, nil
}

// Begin implements Steps.
func (m *PhaseMetrics) Begin(ctx context.Context, op *nodev1.Operation, _ string) (context.Context, func(error)) {
	begun := m.now()
	if op.GetPhase() == nodev1.Phase_PHASE_PENDING {
		begun = time.Unix(0, op.GetOpenedUnixNano())
	}
	return ctx, func(err error) {
		result := "ok"
		if err != nil {
			result = "failed"
		}
		m.seconds.WithLabelValues(label(op.GetKind()), label(op.GetPhase()), result).
			Observe(max(0, m.now().Sub(begun).Seconds()))
	}
}

// Over implements Steps.
func (*PhaseMetrics) Over(*nodev1.Operation, nodev1.Phase, string) {}

// label is the name of a kind or a phase without what all of them have.
func label(v fmt.Stringer) string {
	_, name, _ := strings.Cut(v.String(), "_")
	return strings.ToLower(name)
}
