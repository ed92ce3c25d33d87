package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/join"
)

// Register gives containerd's shim library the service of the tasks.
func Register() {
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
	// The library finds the sockets through the bundle, which may be gone by then.
	sockets := inherited()
	sd.(shutdown.Service).RegisterCallback(func(context.Context) error {
		for _, path := range sockets {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove socket: %w", err)
			}
		}
		return nil
	})
	// stderr is containerd's log of this shim by now.
	level := new(slog.LevelVar)
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	forwarder := events.NewForwarder(ic.Properties[plugins.PropertyTTRPCAddress])
	return shim.NewService(ic.Context, forwarder, sd.(shutdown.Service), hostAt(level)), nil
}

// inherited are the paths of the sockets that this process was started with, which are
// descriptors 3 and, for debugging, 4.
func inherited() (paths []string) {
	for fd := range 2 {
		addr, err := unix.Getsockname(3 + fd)
		if u, ok := addr.(*unix.SockaddrUnix); ok && err == nil && filepath.IsAbs(u.Name) {
			paths = append(paths, u.Name)
		}
	}
	return paths
}

// hostAt makes the log as talkative as the configuration says, once that is read.
func hostAt(level *slog.LevelVar) func(*config.Config) (*shim.Host, error) {
	return func(cfg *config.Config) (*shim.Host, error) {
		said, err := cfg.Log.Slog()
		if err != nil {
			return nil, err
		}
		level.Set(said)
		return join.Host(cfg)
	}
}
