// Package tracing exports the spans of a node: the steps of operations, and what the shims leave in files.
package tracing

import (
	"context"
	"log/slog"
	"time"

	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/api/trace/otlp"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// spanInterval is how often the spans of shims are looked for.
const spanInterval = time.Second

// Forward exports what the shims of this node leave in its state_dir, until ctx ends.
func Forward(ctx context.Context, to *otlp.Exporter, stateDir string) {
	file := trace.InState(stateDir)
	for {
		spans, err := file.Take()
		if err != nil {
			slog.WarnContext(ctx, "read the spans of shims", "error", err)
		}
		to.Add("shim", spans)
		select {
		case <-ctx.Done():
			return
		case <-time.After(spanInterval):
		}
	}
}

// Steps are the engine's steps as spans. The spans of an operation are one trace, on all nodes
// that take its steps.
type Steps struct{ *otlp.Exporter }

var _ engine.Steps = Steps{}

// Begin implements engine.Steps.
func (s Steps) Begin(ctx context.Context, op *nodev1.Operation, step string) (context.Context, func(error)) {
	return s.Exporter.Begin(trace.With(ctx, trace.Of(op.GetId())), step, about(op)...)
}

// Over implements engine.Steps.
func (s Steps) Over(op *nodev1.Operation, phase nodev1.Phase, reason string) {
	failed := ""
	if phase != nodev1.Phase_PHASE_SUCCEEDED {
		failed = phase.String() + ": " + reason
	}
	s.Whole(op.GetId(), op.GetKind().String(), time.Unix(0, op.GetOpenedUnixNano()), time.Now(), failed, about(op)...)
}

func about(op *nodev1.Operation) []string {
	return []string{
		"vm", op.GetVm().GetNamespace() + "/" + op.GetVm().GetId(), "operation", op.GetId(), "phase", op.GetPhase().String(),
		"source", op.GetSource(), "destination", op.GetDestination(), "mode", op.GetMode(),
	}
}
