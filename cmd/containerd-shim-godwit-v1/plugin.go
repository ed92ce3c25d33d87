package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"godwit.dev/godwit/api/config"
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
	level := new(slog.LevelVar)
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	events := newForwarder(ic.Properties[plugins.PropertyTTRPCAddress])
	return shim.NewService(ic.Context, events, sd.(shutdown.Service), hostAt(level)), nil
}

// hostAt makes the log as talkative as the configuration says, once that is read.
func hostAt(level *slog.LevelVar) func(*config.Config) (*shim.Host, error) {
	return func(cfg *config.Config) (*shim.Host, error) {
		if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
			return nil, fmt.Errorf("log.level: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		return join.Host(cfg)
	}
}
