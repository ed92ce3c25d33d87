package shim

import (
	"context"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/shim/stdio"
)

// State answers from what the shim knows, whatever the guest does.
func (s *Service) State(_ context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*taskapi.StateResponse, error) {
		vm := t.vm
		vm.mu.Lock()
		defer vm.mu.Unlock()
		p, err := t.find(r.GetExecID())
		if err != nil {
			return nil, err
		}
		named := p.stdio
		if p.shown != (stdio.URIs{}) {
			named = p.shown
		}
		out := &taskapi.StateResponse{
			ID: t.id, Bundle: t.bundleDir(), Pid: t.pid(), Status: t.status(p), ExecID: p.id,
			Stdin: named.Stdin, Stdout: named.Stdout, Stderr: named.Stderr, Terminal: named.Terminal,
		}
		if p.id != "" {
			out.ID = p.id
			if !p.started {
				out.Pid = 0
			}
		}
		if p.exited {
			out.ExitStatus, out.ExitedAt = p.status, protobuf.ToTimestamp(p.exitedAt)
		}
		return out, nil
	})
}

// status of one process; a pause holds all of them. vm.mu is held.
func (t *Task) status(p *process) tasktypes.Status {
	task := t.reportedStatus()
	switch {
	case p.exited:
		return tasktypes.Status_STOPPED
	case p.id == "", task == tasktypes.Status_PAUSING, task == tasktypes.Status_PAUSED:
		return task
	case p.started:
		return tasktypes.Status_RUNNING
	}
	return tasktypes.Status_CREATED
}

// reportedStatus is the task as containerd is told of it; vm.mu is held.
func (t *Task) reportedStatus() tasktypes.Status {
	switch t.state {
	case TaskNew, TaskCreating, TaskCreated:
		return tasktypes.Status_CREATED
	case TaskArmed:
		return tasktypes.Status_RUNNING
	case TaskStarting:
		if t.vm.isPod() { // CRI ends a sandbox that is not RUNNING, and restarts a container that is PAUSING
			return tasktypes.Status_RUNNING
		}
		// A boot takes long enough for containerd's restart monitor to come by: it kills
		// a task that is CREATED where it should run, and leaves one that is PAUSING alone.
		return tasktypes.Status_PAUSING
	case TaskStopped, TaskDeleting, TaskDeleted:
		return tasktypes.Status_STOPPED
	}
	if t.vm.isPod() {
		return tasktypes.Status_RUNNING
	}
	switch t.vm.state {
	case Pausing:
		return tasktypes.Status_PAUSING
	case Paused, Resuming:
		return tasktypes.Status_PAUSED
	}
	return tasktypes.Status_RUNNING
}

// Wait returns when the process has ended and its output is where it belongs.
func (s *Service) Wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*taskapi.WaitResponse, error) {
		vm := t.vm
		vm.mu.Lock()
		p, err := t.find(r.GetExecID())
		vm.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return &taskapi.WaitResponse{ExitStatus: p.status, ExitedAt: protobuf.ToTimestamp(p.exitedAt)}, nil
	})
}

// Stats answers the guest's figures of now, or the last known.
func (s *Service) Stats(ctx context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	return on(s, r.GetID(), func(t *Task) (*taskapi.StatsResponse, error) {
		stats, err := t.metrics(ctx)
		if err != nil {
			return nil, err
		}
		any, err := typeurl.MarshalAny(stats)
		if err != nil {
			return nil, err
		}
		return &taskapi.StatsResponse{Stats: &anypb.Any{TypeUrl: any.GetTypeUrl(), Value: any.GetValue()}}, nil
	})
}
