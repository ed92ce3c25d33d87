package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	containerd "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/join"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rootfs"
)

// killed is the status of a task whose shim has died.
const killed = 137

// deleteBound keeps delete within what containerd grants it.
const deleteBound = 4 * time.Second

// manager answers what containerd asks of the binary, except start.
type manager struct{}

var _ containerd.Shim = manager{}

func (manager) Name() string { return name }

// Start is never called: start is done before containerd's library gets the arguments.
func (manager) Start(context.Context, *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	return nil, fmt.Errorf("start: %w", errdefs.ErrNotImplemented)
}

// Stop cleans up after a shim that is gone: containerd calls it after every end of one,
// ordinary ends too. A VM that an operation holds is not touched.
func (manager) Stop(ctx context.Context, id string) (containerd.StopStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, deleteBound)
	defer cancel()
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return containerd.StopStatus{}, err
	}
	bundle, err := bundleDir(ctx, id)
	if err != nil {
		return containerd.StopStatus{}, err
	}
	status, unknown := endOf(bundle)
	status.Pid, err = cleanUp(ctx, ns, id, bundle)
	return status, errors.Join(unknown, err, removeSocket(ctx, bundle))
}

// endOf answers how the task has ended: as its shim has noted, or killed if it has noted nothing.
// A note that cannot be read is an error: containerd then tells of an unknown end.
func endOf(bundle string) (containerd.StopStatus, error) {
	end, err := journal.ReadExit(bundle)
	if errors.Is(err, os.ErrNotExist) {
		return containerd.StopStatus{ExitStatus: killed, ExitedAt: time.Now()}, nil
	}
	return containerd.StopStatus{ExitStatus: int(end.Status), ExitedAt: end.At}, err
}

func cleanUp(ctx context.Context, ns, id, bundle string) (pid int, err error) {
	path, err := shim.ConfigPath(bundle)
	if err != nil {
		return 0, err
	}
	cfg, err := config.Load(path)
	if err != nil {
		return 0, err
	}
	host, err := join.Host(cfg)
	if err != nil {
		return 0, err
	}
	return shim.CleanUp(ctx, host, cfg.VMDir(ns, id))
}

// dyingBound is how long a killed process may take to let go of its socket: containerd
// hears of its end before it is over.
const dyingBound = time.Second

// servedInterval is how often it is looked whether somebody still serves on a socket.
const servedInterval = 10 * time.Millisecond

// removeSocket removes the socket that a dead shim has left. One that is served on is
// another shim's by now, or of one that could not be killed.
func removeSocket(ctx context.Context, bundle string) error {
	address, err := shim.ServedAt(bundle)
	if err != nil || address == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dyingBound)
	defer cancel()
	for {
		is, err := served(address)
		if err != nil {
			return err
		}
		if !is {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(servedInterval):
		}
	}
	if err := containerd.RemoveSocket(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove socket of dead shim: %w", err)
	}
	return nil
}

// bundleDir is named by a flag, or is the working directory's neighbour of that id.
func bundleDir(ctx context.Context, id string) (string, error) {
	if opts, ok := ctx.Value(containerd.OptsKey{}).(containerd.Opts); ok && opts.BundlePath != "" {
		return opts.BundlePath, nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(cwd), id), nil
}

// Info tells containerd before 2.4 which mounts to leave to the shim.
func (manager) Info(_ context.Context, stdin io.Reader) (*types.RuntimeInfo, error) {
	_, err := io.Copy(io.Discard, stdin)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return nil, err
	}
	return &types.RuntimeInfo{
		Name:        name,
		Version:     &types.RuntimeVersion{Version: version.Version, Revision: version.Commit},
		Annotations: map[string]string{"containerd.io/runtime-allow-mounts": rootfs.AllowMounts},
	}, nil
}
