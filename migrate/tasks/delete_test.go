package tasks

import (
	"context"
	"sync"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// slowEnd is containerd with one created task that still says so a while after it took its SIGKILL. A shim does so
// that takes its VM down. The task cannot be deleted meanwhile.
type slowEnd struct {
	tasksapi.TasksClient
	refuses bool // an operation holds the VM: it takes no signal

	mu      sync.Mutex
	ended   chan struct{}
	deleted bool
}

func (s *slowEnd) status() tasktypes.Status {
	select {
	case <-s.ended:
		return tasktypes.Status_STOPPED
	default:
		return tasktypes.Status_CREATED
	}
}

func (s *slowEnd) Get(_ context.Context, _ *tasksapi.GetRequest, _ ...grpc.CallOption) (*tasksapi.GetResponse, error) {
	return &tasksapi.GetResponse{Process: &tasktypes.Process{ID: "vm", Pid: 7, Status: s.status()}}, nil
}

func (s *slowEnd) Wait(ctx context.Context, _ *tasksapi.WaitRequest, _ ...grpc.CallOption) (*tasksapi.WaitResponse,
	error) {
	select {
	case <-s.ended:
		return &tasksapi.WaitResponse{ExitStatus: 137}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *slowEnd) Kill(context.Context, *tasksapi.KillRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	if s.refuses {
		return nil, errgrpc.ToGRPC(errdefs.ErrFailedPrecondition)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(s.ended) })
	return &emptypb.Empty{}, nil
}

func (s *slowEnd) Delete(context.Context, *tasksapi.DeleteTaskRequest, ...grpc.CallOption) (*tasksapi.DeleteResponse,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status() != tasktypes.Status_STOPPED {
		return nil, errgrpc.ToGRPC(errdefs.ErrFailedPrecondition)
	}
	s.deleted = true
	return &tasksapi.DeleteResponse{ID: "vm"}, nil
}

// A destination that is given up dies in its own time: who undoes it waits for its end,
// and does not wait for one that would not be killed.
func TestDeleteOfACreatedTask(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		end := &slowEnd{refuses: refuses, ended: make(chan struct{})}
		client, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(new(shimSandboxes)),
			containerd.WithTaskClient(end),
			containerd.WithContainerStore(store{})))
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{containerd: client}
		err = c.deleteTask(namespaces.WithNamespace(t.Context(), "ns"), &nodev1.VM{Namespace: "ns", Id: "vm"}, true)
		switch {
		case !refuses && (err != nil || !end.deleted):
			t.Errorf("deleted %v, %v", end.deleted, err)
		case refuses && (!errdefs.IsFailedPrecondition(err) || end.deleted):
			t.Errorf("a VM that an operation holds: deleted %v, %v", end.deleted, err)
		}
	}
}

type store struct{ containers.Store }

func (store) Get(context.Context, string) (containers.Container, error) {
	return containers.Container{ID: "vm"}, nil
}
