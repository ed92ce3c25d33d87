package main

import (
	"context"
	"time"

	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/api/trace/otlp"
)

const (
	serviceName  = "godwitd"
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
