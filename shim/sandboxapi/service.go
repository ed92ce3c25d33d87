// Package sandboxapi serves containerd's sandbox API for the pod of a shim: runtime handlers with sandboxer = "shim"
// call it. It has no state of its own that decides anything: each call is one of the task service, on the task of the
// sandbox, as the CRI plugin makes it for a pause container.
package sandboxapi

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	api "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"godwit.dev/godwit/shim/bundle"
)

// States of a sandbox, as the CRI plugin knows them.
const (
	ready    = "SANDBOX_READY"
	notReady = "SANDBOX_NOTREADY"
)

// Process is the shim's. Without the sandbox API it ends after its last task.
type Process interface {
	Stay()    // it does not, until Release
	Release() // it ends once it has no task
}

// Service is the sandbox API of a shim.
type Service struct {
	life    context.Context
	log     *slog.Logger
	tasks   taskapi.TTRPCTaskService
	process Process

	mu  sync.Mutex
	pod *pod
}

var _ api.TTRPCSandboxService = (*Service)(nil)

// New serves the API on the methods of tasks, as long as life goes on.
func New(life context.Context, log *slog.Logger, tasks taskapi.TTRPCTaskService, process Process) *Service {
	return &Service{life: life, log: log, tasks: tasks, process: process}
}

// CreateSandbox fills the bundle from the pod's configuration, and creates the task of the sandbox.
func (s *Service) CreateSandbox(ctx context.Context, r *api.CreateSandboxRequest) (*api.CreateSandboxResponse, error) {
	if err := s.create(ctx, r); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &api.CreateSandboxResponse{}, nil
}

func (s *Service) create(ctx context.Context, r *api.CreateSandboxRequest) error {
	id := r.GetSandboxID()
	config, err := readConfig(r.GetOptions())
	if err != nil {
		return fmt.Errorf("create sandbox %s: %w", id, err)
	}
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	p, err := s.begin(id)
	if err != nil {
		return err
	}
	defer close(p.created)
	s.process.Stay() // between the end of the sandbox and ShutdownSandbox containerd asks for its status
	if err := s.createTask(ctx, r, config); err != nil {
		s.forget(p)
		return err
	}
	go p.reap(namespaces.WithNamespace(s.life, ns), s)
	return nil
}

func (s *Service) createTask(ctx context.Context, r *api.CreateSandboxRequest, config *podConfig) error {
	id, dir := r.GetSandboxID(), r.GetBundlePath()
	options, err := readOptions(dir)
	if err != nil {
		return fmt.Errorf("create sandbox %s: %w", id, err)
	}
	if err := bundle.WriteSandbox(dir, id, r.GetNetnsPath(), config); err != nil {
		return fmt.Errorf("create sandbox %s: %w", id, err)
	}
	_, err = s.tasks.Create(ctx, &taskapi.CreateTaskRequest{ID: id, Bundle: dir, Options: options})
	return errgrpc.ToNative(err)
}

// StartSandbox starts the task of the sandbox: the VM.
func (s *Service) StartSandbox(ctx context.Context, r *api.StartSandboxRequest) (*api.StartSandboxResponse, error) {
	p, err := s.find(r.GetSandboxID())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	started, err := s.tasks.Start(ctx, &taskapi.StartRequest{ID: p.id})
	if err != nil {
		return nil, err
	}
	return &api.StartSandboxResponse{Pid: started.GetPid(), CreatedAt: timestamppb.New(p.at)}, nil
}

// Platform is what the specs of containers are made for.
func (s *Service) Platform(context.Context, *api.PlatformRequest) (*api.PlatformResponse, error) {
	return &api.PlatformResponse{Platform: &types.Platform{OS: "linux", Architecture: runtime.GOARCH}}, nil
}

// StopSandbox kills the task of the sandbox, and answers once that is deleted. As for a pause container there is no
// grace: containerd has stopped the containers.
func (s *Service) StopSandbox(ctx context.Context, r *api.StopSandboxRequest) (*api.StopSandboxResponse, error) {
	p, err := s.find(r.GetSandboxID())
	if err == nil {
		err = s.stop(ctx, p)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("stop sandbox %s: %w", r.GetSandboxID(), err))
	}
	return &api.StopSandboxResponse{}, nil
}

// WaitSandbox answers at the sandbox's end: its task is deleted, and its VMM is gone.
func (s *Service) WaitSandbox(ctx context.Context, r *api.WaitSandboxRequest) (*api.WaitSandboxResponse, error) {
	p, err := s.find(r.GetSandboxID())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	select {
	case <-p.gone:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &api.WaitSandboxResponse{ExitStatus: p.exit.GetExitStatus(), ExitedAt: p.exit.GetExitedAt()}, nil
}

// SandboxStatus says ready from the begin of the start to the end. A task that has ended is not deleted yet.
func (s *Service) SandboxStatus(ctx context.Context, r *api.SandboxStatusRequest) (*api.SandboxStatusResponse, error) {
	p, err := s.find(r.GetSandboxID())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	out := &api.SandboxStatusResponse{SandboxID: p.id, State: notReady, CreatedAt: timestamppb.New(p.at)}
	task, err := s.tasks.State(ctx, &taskapi.StateRequest{ID: p.id})
	if errdefs.IsNotFound(errgrpc.ToNative(err)) && p.deleted(ctx) {
		out.ExitedAt = p.exit.GetExitedAt()
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	out.Pid = task.GetPid()
	if task.GetStatus() != tasktypes.Status_CREATED {
		out.State = ready
	}
	return out, nil
}

// PingSandbox answers if the shim has the sandbox.
func (s *Service) PingSandbox(_ context.Context, r *api.PingRequest) (*api.PingResponse, error) {
	if _, err := s.find(r.GetSandboxID()); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &api.PingResponse{}, nil
}

// ShutdownSandbox is StopSandbox, and ends the shim. It is called after a CreateSandbox that failed too.
func (s *Service) ShutdownSandbox(ctx context.Context, r *api.ShutdownSandboxRequest) (*api.ShutdownSandboxResponse,
	error) {
	if p, err := s.find(r.GetSandboxID()); err == nil {
		if err := s.stop(ctx, p); err != nil {
			return nil, errgrpc.ToGRPC(fmt.Errorf("shut sandbox %s down: %w", p.id, err))
		}
	}
	s.process.Release()
	return &api.ShutdownSandboxResponse{}, nil
}

// SandboxMetrics are the stats of the sandbox's task: what the VM costs the host.
func (s *Service) SandboxMetrics(ctx context.Context, r *api.SandboxMetricsRequest) (*api.SandboxMetricsResponse,
	error) {
	stats, err := s.tasks.Stats(ctx, &taskapi.StatsRequest{ID: r.GetSandboxID()})
	if err != nil {
		return nil, err
	}
	return &api.SandboxMetricsResponse{Metrics: &types.Metric{
		Timestamp: timestamppb.New(time.Now()), ID: r.GetSandboxID(), Data: stats.GetStats(),
	}}, nil
}

// UpdateSandbox is not there: the size of a VM is that of its boot. containerd goes on without it.
func (s *Service) UpdateSandbox(context.Context, *api.UpdateSandboxRequest) (*api.UpdateSandboxResponse, error) {
	return nil, errgrpc.ToGRPC(fmt.Errorf("update sandbox: the size of a VM is that of its boot: %w",
		errdefs.ErrNotImplemented))
}
