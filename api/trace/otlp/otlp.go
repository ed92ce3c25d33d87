// Package otlp sends spans to a collector, by OTLP over HTTP.
package otlp

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"time"

	global "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otel "go.opentelemetry.io/otel/trace"

	"godwit.dev/godwit/api/trace"
)

// Exporter implements trace.Recorder. What a collector does not take in time is dropped:
// nothing waits for it.
type Exporter struct {
	provider *sdk.TracerProvider
	tracer   otel.Tracer
	program  string
}

var _ trace.Recorder = (*Exporter)(nil)

const (
	sendBound = 5 * time.Second
	batchWait = time.Second // for more spans, before those that there are go
)

// New exports what program does on a node. Nothing is sent before there is a span.
func New(ctx context.Context, endpoint, program, node string) (*Exporter, error) {
	client, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint+"/v1/traces"),
		otlptracehttp.WithTimeout(sendBound))
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	// A collector that is away concerns only a user who looks for it.
	global.SetErrorHandler(global.ErrorHandlerFunc(func(err error) { slog.Debug("export spans", "error", err) }))
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(client, sdk.WithBatchTimeout(batchWait)), sdk.WithIDGenerator(ids{}),
		sdk.WithSampler(sdk.AlwaysSample()),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "godwit"),
			attribute.String("host.name", node))),
	)
	return &Exporter{provider: provider, tracer: provider.Tracer(program), program: program}, nil
}

// Close sends what is left.
func (e *Exporter) Close(ctx context.Context) error { return e.provider.Shutdown(ctx) }

// Begin implements trace.Recorder.
func (e *Exporter) Begin(ctx context.Context, name string, attributes ...string) (context.Context, func(error)) {
	parent, ok := trace.From(ctx)
	if !ok {
		return ctx, func(error) {}
	}
	own := parent.Child()
	span := e.start(ctx, own, &parent, name, time.Now(), attributes)
	return trace.With(ctx, own), func(err error) { end(span, text(err), time.Now()) }
}

// Whole records an operation that is over: the span that all others of it are below.
func (e *Exporter) Whole(operation, name string, from, to time.Time, failed string, attributes ...string) {
	end(e.start(context.Background(), trace.Of(operation), nil, name, from, attributes), failed, to)
}

// Add records the spans that another process has left.
func (e *Exporter) Add(program string, spans []trace.Span) {
	of := &Exporter{tracer: e.provider.Tracer(program), program: program}
	for _, s := range spans {
		own, ok1 := trace.Parse(s.Context)
		parent, ok2 := trace.Parse(s.Parent)
		if ok1 && ok2 {
			end(of.start(context.Background(), own, &parent, s.Name, time.Unix(0, s.Start), s.Attributes), s.Error,
				time.Unix(0, s.End))
		}
	}
}

func (e *Exporter) start(ctx context.Context, own trace.Context, parent *trace.Context, name string, at time.Time,
	attributes []string) otel.Span {
	ctx = context.WithValue(ctx, forced{}, own)
	options := []otel.SpanStartOption{otel.WithTimestamp(at),
		otel.WithAttributes(attribute.String("godwit.program", e.program))}
	for i := 0; i+1 < len(attributes); i += 2 {
		options = append(options, otel.WithAttributes(attribute.String("godwit."+attributes[i], attributes[i+1])))
	}
	if parent == nil {
		options = append(options, otel.WithNewRoot())
	} else {
		ctx = otel.ContextWithRemoteSpanContext(ctx, otel.NewSpanContext(otel.SpanContextConfig{
			TraceID: otel.TraceID(parent.Trace), SpanID: otel.SpanID(parent.Span), TraceFlags: otel.FlagsSampled, Remote: true,
		}))
	}
	_, span := e.tracer.Start(ctx, name, options...)
	return span
}

func end(span otel.Span, failed string, at time.Time) {
	if failed != "" {
		span.SetStatus(codes.Error, failed)
	}
	span.End(otel.WithTimestamp(at))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// forced is the key of the ids that the next span gets.
type forced struct{}

// ids gives spans the ids that were chosen for them.
type ids struct{}

// NewIDs implements sdk.IDGenerator.
func (ids) NewIDs(ctx context.Context) (otel.TraceID, otel.SpanID) {
	own, ok := ctx.Value(forced{}).(trace.Context)
	if !ok {
		_, _ = rand.Read(own.Trace[:])
		own = own.Child()
	}
	return otel.TraceID(own.Trace), otel.SpanID(own.Span)
}

// NewSpanID implements sdk.IDGenerator.
func (g ids) NewSpanID(ctx context.Context, _ otel.TraceID) otel.SpanID {
	_, span := g.NewIDs(ctx)
	return span
}
