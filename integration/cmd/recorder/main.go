// Command recorder is a runtime shim that runs nothing: each of its tasks is a process that sleeps. It
// writes down every call of containerd, and can hold one before its answer. So it shows in which
// order containerd's CRI plugin calls a shim, and what the plugin does after a crash.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
)

const name = "io.containerd.recorder.v1"

func main() {
	shim.RunShim(context.Background(), manager{}, func(c *shim.Config) { c.NoReaper = true })
}

// manager answers what containerd asks of the binary.
type manager struct{}

func (manager) Name() string { return name }

// Start starts the server of a new sandbox. A member's Create comes to that server.
func (manager) Start(ctx context.Context, p *bootapi.BootstrapParams) (_ *bootapi.BootstrapResult, err error) {
	id := p.GetInstanceID()
	if err := record("binary start", id, ""); err != nil {
		return nil, err
	}
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	address, err := shim.CreateSocketAddress(ctx, p.GetSocketDir(), p.GetContainerdGrpcAddress(), id, false)
	if err != nil {
		return nil, err
	}
	socket, err := shim.NewSocket(address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer socket.Close()
	socket.SetUnlinkOnClose(false)
	file, err := socket.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-namespace", ns, "-id", id, "-address", p.GetContainerdGrpcAddress())
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	return &bootapi.BootstrapResult{Version: 3, Protocol: "ttrpc", Address: address}, nil
}

// Stop is the binary's delete.
func (manager) Stop(_ context.Context, id string) (shim.StopStatus, error) {
	err := record("binary delete", id, "")
	return shim.StopStatus{ExitStatus: 137, ExitedAt: time.Now()}, err
}

// Info implements shim.Shim.
func (manager) Info(_ context.Context, stdin io.Reader) (*types.RuntimeInfo, error) {
	if _, err := io.Copy(io.Discard, stdin); err != nil && !errors.Is(err, os.ErrClosed) {
		return nil, err
	}
	return &types.RuntimeInfo{Name: name, Version: &types.RuntimeVersion{Version: "1"}}, nil
}
