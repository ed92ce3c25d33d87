package operator

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
)

// bridge tells what the framework says by slog. Each error is told; one without an error is a warning. Of the rest only
// what is for everybody is told, V(0).
type bridge struct{ log *slog.Logger }

// Logger is a logger for the framework that ends in log.
func Logger(log *slog.Logger) logr.Logger { return logr.New(bridge{log}) }

func (bridge) Init(logr.RuntimeInfo) {}

func (bridge) Enabled(level int) bool { return level <= 0 }

func (b bridge) Info(level int, message string, more ...any) {
	if b.Enabled(level) {
		b.log.Log(context.Background(), slog.LevelInfo, message, more...)
	}
}

func (b bridge) Error(err error, message string, more ...any) {
	if err == nil {
		b.log.Log(context.Background(), slog.LevelWarn, message, more...)
		return
	}
	b.log.Log(context.Background(), slog.LevelError, message, append(more, "err", err)...)
}

func (b bridge) WithValues(more ...any) logr.LogSink { return bridge{b.log.With(more...)} }

func (b bridge) WithName(name string) logr.LogSink { return bridge{b.log.With("logger", name)} }
