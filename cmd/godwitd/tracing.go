package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/api/trace/otlp"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	serviceName  = "godwitd"
	spanInterval = time.Second // at which those of the shims are looked for
	flushTimeout = 2 * time.Second
)

// openTracing begins to export spans, if the configuration says so.
func (d *daemon) openTracing(ctx context.Context) error {
	if d.config.Tracing.Endpoint == "" {
		return nil
	}
	e, err := otlp.New(ctx, d.config.Tracing.Endpoint, serviceName, d.config.Node)
	if err != nil {
		return err
	}
	d.spans = e
	d.undo = append(d.undo, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		return e.Close(ctx)
	})
	return nil
}

// traced records the calls that a server answers.
func (d *daemon) traced() ttrpc.ServerOpt {
	var r trace.Recorder = trace.Off{}
	if d.spans != nil {
		r = d.spans
	}
	return ttrpc.WithChainUnaryServerInterceptor(trace.Server(r))
}

// sendSpans exports what the shims of this node leave.
func (d *daemon) sendSpans(ctx context.Context) {
	file := trace.InState(d.config.StateDir)
	for d.spans != nil {
		spans, err := file.Take()
		if err != nil {
			slog.WarnContext(ctx, "read the spans of shims", "error", err)
		}
		d.spans.Add("shim", spans)
		select {
		case <-ctx.Done():
			return
		case <-time.After(spanInterval):
		}
	}
}

// tracedSteps are the engine's steps as spans: those of an operation are one trace, whoever
// takes them.
type tracedSteps struct{ *otlp.Exporter }

var _ engine.Steps = tracedSteps{}

// Begin implements engine.Steps.
func (s tracedSteps) Begin(ctx context.Context, op *nodev1.Operation, step string) (context.Context, func(error)) {
	return s.Exporter.Begin(trace.With(ctx, trace.Of(op.GetId())), step, about(op)...)
}

// Over implements engine.Steps.
func (s tracedSteps) Over(op *nodev1.Operation, phase nodev1.Phase, reason string) {
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
