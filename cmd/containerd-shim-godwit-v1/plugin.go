package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	containerd "github.com/containerd/containerd/v2/pkg/shim"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/join"
)

func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn:   newService,
	})
}

func newService(ic *plugin.InitContext) (any, error) {
	publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
	if err != nil {
		return nil, err
	}
	sd, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
	if err != nil {
		return nil, err
	}
	// stderr is containerd's log of this shim by now.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})))
	events, ok := publisher.(containerd.Publisher)
	if !ok {
		return nil, fmt.Errorf("publisher is a %T", publisher)
	}
	return shim.NewService(ic.Context, &publish{events}, sd.(shutdown.Service), join.Host), nil
}

func printVersion(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n", name, version.String())
}

// publish gives containerd's publisher the method that package shim wants. Its queue
// keeps the context for later tries.
type publish struct{ containerd.Publisher }

func (p *publish) Publish(ctx context.Context, topic string, event any) error {
	return p.Publisher.Publish(context.WithoutCancel(ctx), topic, event)
}
