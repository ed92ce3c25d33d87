package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	status "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// sandboxed says that the shim was asked for a sandbox by the sandbox API.
var sandboxed atomic.Bool

// sandboxService is the sandbox API, whose sandbox is a process as each task is.
type sandboxService struct {
	sandbox.TTRPCSandboxService
	tasks *service
}

func (s sandboxService) CreateSandbox(_ context.Context, r *sandbox.CreateSandboxRequest) (
	*sandbox.CreateSandboxResponse, error) {
	sandboxed.Store(true)
	return &sandbox.CreateSandboxResponse{}, s.tasks.add(r.SandboxID, "")
}

func (s sandboxService) StartSandbox(ctx context.Context, r *sandbox.StartSandboxRequest) (
	*sandbox.StartSandboxResponse, error) {
	started, err := s.tasks.Start(ctx, &task.StartRequest{ID: r.SandboxID})
	return &sandbox.StartSandboxResponse{Pid: started.GetPid(), CreatedAt: timestamppb.Now()}, err
}

func (sandboxService) Platform(context.Context, *sandbox.PlatformRequest) (*sandbox.PlatformResponse, error) {
	return &sandbox.PlatformResponse{Platform: &types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}}, nil
}

func (s sandboxService) StopSandbox(ctx context.Context, r *sandbox.StopSandboxRequest) (
	*sandbox.StopSandboxResponse, error) {
	if _, err := s.tasks.Kill(ctx, &task.KillRequest{ID: r.SandboxID, Signal: 9}); err != nil {
		return nil, err
	}
	_, err := s.tasks.Wait(ctx, &task.WaitRequest{ID: r.SandboxID})
	return &sandbox.StopSandboxResponse{}, err
}

func (s sandboxService) WaitSandbox(ctx context.Context, r *sandbox.WaitSandboxRequest) (
	*sandbox.WaitSandboxResponse, error) {
	end, err := s.tasks.Wait(ctx, &task.WaitRequest{ID: r.SandboxID})
	return &sandbox.WaitSandboxResponse{ExitStatus: end.GetExitStatus(), ExitedAt: end.GetExitedAt()}, err
}

func (s sandboxService) SandboxStatus(ctx context.Context, r *sandbox.SandboxStatusRequest) (
	*sandbox.SandboxStatusResponse, error) {
	now, err := s.tasks.State(ctx, &task.StateRequest{ID: r.SandboxID})
	state := "SANDBOX_NOTREADY"
	if now.GetStatus() == status.Status_RUNNING {
		state = "SANDBOX_READY"
	}
	return &sandbox.SandboxStatusResponse{SandboxID: r.SandboxID, Pid: now.GetPid(), State: state}, err
}

func (s sandboxService) ShutdownSandbox(ctx context.Context, r *sandbox.ShutdownSandboxRequest) (
	*sandbox.ShutdownSandboxResponse, error) {
	if _, err := s.tasks.Delete(ctx, &task.DeleteRequest{ID: r.SandboxID}); err != nil {
		return nil, err
	}
	time.AfterFunc(lastAnswer, s.tasks.shutdown.Shutdown)
	return &sandbox.ShutdownSandboxResponse{}, nil
}

// SandboxMetrics is asked for again and again by the plugin.
func (sandboxService) SandboxMetrics(context.Context, *sandbox.SandboxMetricsRequest) (
	*sandbox.SandboxMetricsResponse, error) {
	return nil, errgrpc.ToGRPC(fmt.Errorf("metrics: %w", errdefs.ErrNotImplemented))
}

// lastAnswer is how long the shim lives after its sandbox, so that its answer gets out.
const lastAnswer = 100 * time.Millisecond

// brings says what a CreateSandbox has.
func brings(r *sandbox.CreateSandboxRequest) string {
	_, err := os.Stat(filepath.Join(r.GetBundlePath(), "config.json"))
	return fmt.Sprintf("mounts %d annotations %d config.json %t netns %t %s %s", len(r.GetRootfs()),
		len(r.GetAnnotations()), err == nil, r.GetNetnsPath() != "", r.GetOptions().MessageName(),
		base64.StdEncoding.EncodeToString(r.GetOptions().GetValue()))
}

// files says which files of its pod a container has by its bundle.
func files(r *task.CreateTaskRequest) string {
	data, err := os.ReadFile(filepath.Join(r.GetBundle(), "config.json"))
	oci := new(specs.Spec)
	if err == nil {
		err = json.Unmarshal(data, oci)
	}
	if err != nil {
		return err.Error()
	}
	all := ""
	for _, m := range oci.Mounts {
		switch m.Destination {
		case "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/shm":
			all += " " + m.Type + " " + m.Destination
		}
	}
	return all
}
