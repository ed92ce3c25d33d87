// Package bootstrap is how containerd starts a shim and cleans up after it, by the arguments that
// containerd gives to the binary: start, delete and -info. In the process that start leaves it serves the tasks.
package bootstrap

import (
	"context"
	"encoding/json"
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
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/join"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rootfs"
)

// Name is what containerd calls this runtime.
const Name = "io.containerd.godwit.v1"

// killed is the status of a task whose shim has died.
const killed = 137

// deleteBound keeps delete within what containerd grants it.
const deleteBound = 4 * time.Second

// Manager answers what containerd asks of the binary, except start.
type Manager struct{}

var _ containerd.Shim = Manager{}

// Name is the runtime's.
func (Manager) Name() string { return Name }

// Start is never called: start is done before containerd's library gets the arguments.
func (Manager) Start(context.Context, *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	return nil, fmt.Errorf("start: %w", errdefs.ErrNotImplemented)
}

// Stop cleans up after a shim that is gone: containerd calls it after every end of one,
// ordinary ends too. A VM that an operation holds is not touched.
func (Manager) Stop(ctx context.Context, id string) (containerd.StopStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, deleteBound)
	defer cancel()
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return containerd.StopStatus{}, err
	}
	dir, err := bundleDir(ctx, id)
	if err != nil {
		return containerd.StopStatus{}, err
	}
	status, unknown := endOf(dir)
	member, err := bundle.IsMember(dir)
	if member || err != nil { // the VM and the socket are the pod's, and the sandbox's delete frees them
		return status, errors.Join(unknown, err)
	}
	name, err := bundle.VMName(dir, id)
	if err != nil { // no Create has made anything of such a bundle
		return status, errors.Join(unknown, err, removeSocket(ctx, dir))
	}
	status.Pid, err = cleanUp(ctx, ns, name, dir)
	return status, errors.Join(unknown, err, removeSocket(ctx, dir))
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
	return shim.CleanUp(ctx, host, cfg.VMDir(ns, id), bundle)
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

// featuresType names the type of RuntimeInfo's features, which are JSON, as core/runtime/typeurl.go of
// containerd does.
const featuresType = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// Info tells which parts of a config.json are known. To containerd before 2.4 it tells which mounts to
// leave to the shim.
func (Manager) Info(_ context.Context, stdin io.Reader) (*types.RuntimeInfo, error) {
	_, err := io.Copy(io.Discard, stdin)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return nil, err
	}
	known, err := json.Marshal(bundle.Features())
	if err != nil {
		return nil, fmt.Errorf("say what is known of a config.json: %w", err)
	}
	return &types.RuntimeInfo{
		Features:    &anypb.Any{TypeUrl: featuresType, Value: known},
		Name:        Name,
		Version:     &types.RuntimeVersion{Version: version.Version, Revision: version.Commit},
		Annotations: map[string]string{"containerd.io/runtime-allow-mounts": rootfs.AllowMounts},
	}, nil
}
