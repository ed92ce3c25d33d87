package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/api/trace/otlp"
)

// started is when this program was.
var started = time.Now()

// flushTimeout bounds what a collector may hold up the program.
const flushTimeout = 2 * time.Second

// trace records how long the caller of an operation has waited for it, if the node is traced. That a collector does not
// listen is no failure of the command.
func (o *options) trace(cmd *cobra.Command, operation string, failed error) {
	if o.socket != "" {
		return // another node's daemon, or one without a configuration here
	}
	cfg, err := config.Load(o.config)
	if err != nil || cfg.Tracing.Endpoint == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), flushTimeout)
	defer cancel()
	e, err := otlp.New(ctx, cfg.Tracing.Endpoint, "godwit", cfg.Node)
	if err != nil {
		return
	}
	span := trace.Span{
		Context: trace.Of(operation).Child().String(), Parent: trace.Of(operation).String(), Name: cmd.CommandPath(),
		Start: started.UnixNano(), End: time.Now().UnixNano(),
	}
	if failed != nil {
		span.Error = failed.Error()
	}
	e.Add("godwit", []trace.Span{span})
	_ = e.Close(ctx)
}
