// Package trace carries the context of OpenTelemetry's traces between the programs, in the
// metadata of ttrpc, and says what a program needs to record spans. It knows no exporter: a shim
// writes its spans to a file, from which the daemon of its node sends them.
//
// The trace of an operation is derived from its id. So each program that takes a step of it adds
// to the same trace, also after a restart or on another node.
package trace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"

	"github.com/containerd/ttrpc"
)

// key of the metadata, and form of its value, are those of W3C's Trace Context.
const key = "traceparent"

// ID of a trace.
type ID [16]byte

// SpanID of a span in it.
type SpanID [8]byte

// Context names a span.
type Context struct {
	Trace ID
	Span  SpanID
}

// Of is the span of a whole operation.
func Of(operation string) (c Context) {
	sum := sha256.Sum256([]byte("godwit operation " + operation))
	copy(c.Trace[:], sum[:16])
	copy(c.Span[:], sum[16:24])
	return c
}

// Child is a new span in the same trace.
func (c Context) Child() Context {
	_, _ = rand.Read(c.Span[:]) // it never fails
	return c
}

// String is the value of the metadata.
func (c Context) String() string {
	return "00-" + hex.EncodeToString(c.Trace[:]) + "-" + hex.EncodeToString(c.Span[:]) + "-01"
}

// Parse reads the value of the metadata; one that is none, or asks for no record, is not ok.
func Parse(text string) (c Context, ok bool) {
	parts := strings.Split(text, "-")
	if len(parts) != 4 || parts[0] != "00" || parts[3] != "01" || len(parts[1]) != 2*len(c.Trace) ||
		len(parts[2]) != 2*len(c.Span) {
		return Context{}, false
	}
	_, err1 := hex.Decode(c.Trace[:], []byte(parts[1]))
	_, err2 := hex.Decode(c.Span[:], []byte(parts[2]))
	if err1 != nil || err2 != nil || c.Trace == (ID{}) || c.Span == (SpanID{}) {
		return Context{}, false
	}
	return c, true
}

// With has everything that is done in ctx belong to that span, calls of ttrpc included.
func With(ctx context.Context, c Context) context.Context {
	old, _ := ttrpc.GetMetadata(ctx)
	md := old.Clone()
	if md == nil {
		md = ttrpc.MD{}
	}
	md.Set(key, c.String())
	return ttrpc.WithMetadata(ctx, md)
}

// From answers the span that ctx belongs to.
func From(ctx context.Context) (Context, bool) {
	text, ok := ttrpc.GetMetadataValue(ctx, key)
	if !ok {
		return Context{}, false
	}
	return Parse(text)
}

// Recorder records spans.
type Recorder interface {
	// Begin a span below the one that ctx belongs to. It answers the ctx of what is done in the
	// span, and what ends it. A span that is not ended is not recorded. Where ctx belongs to none,
	// neither does anything. Attributes are pairs of key and value.
	Begin(ctx context.Context, name string, attributes ...string) (context.Context, func(error))
}

// Off records nothing, and costs nothing.
type Off struct{}

// Begin implements Recorder.
func (Off) Begin(ctx context.Context, _ string, _ ...string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// Last is Server for a program that answers to one that records, and makes no calls that are to
// be recorded. What it does is one span, and its own calls carry none.
func Last(r Recorder) ttrpc.UnaryServerInterceptor {
	server := Server(r)
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any,
		error) {
		return server(ctx, unmarshal, info, func(ctx context.Context, unmarshal func(any) error) (any, error) {
			md, _ := ttrpc.GetMetadata(ctx)
			md = md.Clone()
			delete(md, key)
			return method(ttrpc.WithMetadata(ctx, md), unmarshal)
		})
	}
}

// Server records the calls that belong to a span.
func Server(r Recorder) ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any,
		error) {
		ctx, end := r.Begin(ctx, path.Base(path.Dir(info.FullMethod))+"/"+path.Base(info.FullMethod))
		resp, err := method(ctx, unmarshal)
		end(err)
		return resp, err
	}
}
