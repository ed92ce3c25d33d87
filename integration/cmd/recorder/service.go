package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	types "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func init() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "task", Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			sd, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return &service{shutdown: sd.(shutdown.Service), processes: map[string]*process{}}, nil
		},
	})
}

// process is a task or an exec: a program that sleeps.
type process struct {
	cmd    *exec.Cmd
	stdio  []*os.File
	status types.Status
	exit   uint32
	at     time.Time
	done   chan struct{}
}

// service answers calls as a shim does whose tasks end by signals alone, and execs by themselves.
type service struct {
	task.TTRPCTaskService
	shutdown shutdown.Service

	mu        sync.Mutex
	processes map[string]*process // by id/exec
}

// RegisterTTRPC implements the library's service.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	task.RegisterTTRPCTaskService(server, s)
	sandbox.RegisterTTRPCSandboxService(server, sandboxService{tasks: s})
	return nil
}

// UnaryServerInterceptor implements the library's option.
func (s *service) UnaryServerInterceptor() ttrpc.UnaryServerInterceptor { return intercept }

func (s *service) add(id, execID string, stdio ...string) error {
	p := &process{status: types.Status_CREATED, done: make(chan struct{}), cmd: exec.Command("sleep", "infinity")}
	if execID != "" {
		p.cmd = exec.Command("sleep", "0.1")
	}
	for _, path := range stdio {
		if path == "" {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		p.stdio = append(p.stdio, f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[id+"/"+execID] != nil {
		return errgrpc.ToGRPC(fmt.Errorf("%s %s: %w", id, execID, errdefs.ErrAlreadyExists))
	}
	s.processes[id+"/"+execID] = p
	if execID == "" { // a task has a pid from Create on
		return p.start(s)
	}
	return nil
}

func (p *process) start(s *service) error {
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		p.status, p.at = types.Status_STOPPED, time.Now()
		if w := p.cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
			p.exit = 128 + uint32(w.Signal())
		}
		for _, f := range p.stdio {
			_ = f.Close()
		}
		close(p.done)
	}()
	return nil
}

// find answers a process; the caller must not hold the lock.
func (s *service) find(id, execID string) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.processes[id+"/"+execID]
	if p == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s %s: %w", id, execID, errdefs.ErrNotFound))
	}
	return p, nil
}

func (p *process) pid() uint32 {
	if p.cmd.Process == nil {
		return 0
	}
	return uint32(p.cmd.Process.Pid)
}

func (s *service) Create(_ context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	if err := s.add(r.ID, "", r.Stdout, r.Stderr); err != nil {
		return nil, err
	}
	p, err := s.find(r.ID, "")
	if err != nil {
		return nil, err
	}
	return &task.CreateTaskResponse{Pid: p.pid()}, nil
}

func (s *service) Exec(_ context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.add(r.ID, r.ExecID, r.Stdout, r.Stderr)
}

func (s *service) Start(_ context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	p, err := s.find(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if r.ExecID != "" {
		if err := p.start(s); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.status == types.Status_CREATED {
		p.status = types.Status_RUNNING
	}
	return &task.StartResponse{Pid: p.pid()}, nil
}

func (s *service) State(_ context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	p, err := s.find(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := p.status
	if status == types.Status_RUNNING && lies("paused") {
		status = types.Status_PAUSED
	}
	return &task.StateResponse{ID: r.ID, ExecID: r.ExecID, Pid: p.pid(), Status: status, ExitStatus: p.exit,
		ExitedAt: timestamppb.New(p.at)}, nil
}

func (s *service) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	p, err := s.find(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
		return &task.WaitResponse{ExitStatus: p.exit, ExitedAt: timestamppb.New(p.at)}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *service) Kill(_ context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	p, err := s.find(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
		return nil, errgrpc.ToGRPC(fmt.Errorf("%s has ended: %w", r.ID, errdefs.ErrNotFound))
	default:
		return &emptypb.Empty{}, p.cmd.Process.Signal(syscall.Signal(r.Signal))
	}
}

func (s *service) Delete(_ context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	p, err := s.find(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	delete(s.processes, r.ID+"/"+r.ExecID)
	s.mu.Unlock()
	if p.pid() != 0 {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return &task.DeleteResponse{Pid: p.pid(), ExitStatus: p.exit, ExitedAt: timestamppb.New(p.at)}, nil
}

func (s *service) Pids(_ context.Context, r *task.PidsRequest) (*task.PidsResponse, error) {
	p, err := s.find(r.ID, "")
	if err != nil || lies("no pids") {
		return &task.PidsResponse{}, err
	}
	return &task.PidsResponse{Processes: []*types.ProcessInfo{{Pid: p.pid()}}}, nil
}

func (s *service) Connect(_ context.Context, r *task.ConnectRequest) (*task.ConnectResponse, error) {
	out := &task.ConnectResponse{ShimPid: uint32(os.Getpid())}
	p, err := s.find(r.ID, "")
	if err == nil {
		out.TaskPid = p.pid()
	}
	return out, err
}

// Shutdown ends the shim once it has no task.
func (s *service) Shutdown(context.Context, *task.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.processes) == 0 {
		s.shutdown.Shutdown()
	}
	return &emptypb.Empty{}, nil
}

// Stats implements the task service.
func (s *service) Stats(context.Context, *task.StatsRequest) (*task.StatsResponse, error) {
	return nil, errgrpc.ToGRPC(fmt.Errorf("stats: %w", errdefs.ErrNotImplemented))
}
