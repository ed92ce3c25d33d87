package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/join"
)

func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn:   newService,
	})
}

func newService(ic *plugin.InitContext) (any, error) {
	sd, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
	if err != nil {
		return nil, err
	}
	// stderr is containerd's log of this shim by now.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})))
	events := newForwarder(ic.Properties[plugins.PropertyTTRPCAddress])
	return shim.NewService(ic.Context, events, sd.(shutdown.Service), join.Host), nil
}

func printVersion(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n", name, version.String())
}
