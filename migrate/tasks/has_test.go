package tasks

import (
	"context"
	"fmt"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// sandboxes is containerd with sandboxes of pods alone.
type sandboxes struct {
	containers.Store
	all   []containers.Container
	fails string // the call that fails
}

func (s *sandboxes) fail(call string) error {
	if s.fails == call {
		return fmt.Errorf("%s: %w", call, errdefs.ErrUnavailable)
	}
	return nil
}

func (s *sandboxes) Get(context.Context, string) (containers.Container, error) {
	if err := s.fail("get"); err != nil {
		return containers.Container{}, err
	}
	return containers.Container{}, errdefs.ErrNotFound
}

func (s *sandboxes) List(context.Context, ...string) ([]containers.Container, error) {
	return s.all, s.fail("list")
}

// sandboxTasks are their tasks.
type sandboxTasks struct {
	tasksapi.TasksClient
	of  *sandboxes
	all map[string]tasktypes.Status
}

func (s sandboxTasks) Get(_ context.Context, r *tasksapi.GetRequest, _ ...grpc.CallOption) (*tasksapi.GetResponse,
	error) {
	if err := s.of.fail("get task"); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	status, found := s.all[r.GetContainerID()]
	if !found {
		return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
	}
	return &tasksapi.GetResponse{Process: &tasktypes.Process{ID: r.GetContainerID(), Status: status}}, nil
}

// TestPodIsFound: the container of a pod's VM is the sandbox that names the VM. An adopted VM whose container is not
// found is ended, so a failure to look is never "no".
func TestPodIsFound(t *testing.T) {
	sandbox := func(id, name string) containers.Container {
		oci := fmt.Sprintf(`{"annotations": {"io.kubernetes.cri.sandbox-namespace": "team", "godwit.dev/vm": %q}}`, name)
		return containers.Container{ID: id, Labels: map[string]string{"io.cri-containerd.kind": "sandbox"},
			Spec: &anypb.Any{Value: []byte(oci)}}
	}
	s := &sandboxes{all: []containers.Container{sandbox("1", "other"), sandbox("2", "web"), sandbox("3", "web")}}
	tasks := sandboxTasks{of: s, all: map[string]tasktypes.Status{"1": tasktypes.Status_RUNNING}}
	ctr, err := containerd.New("", containerd.WithServices(containerd.WithTaskClient(tasks),
		containerd.WithContainerStore(s)))
	if err != nil {
		t.Fatal(err)
	}
	c, web := &Client{containerd: ctr}, &nodev1.VM{Namespace: "k8s.io", Id: "team.web"}
	want := func(what string, has, hasTask, busy bool) {
		t.Helper()
		for name, of := range map[string]struct {
			ask  func(context.Context, *nodev1.VM) (bool, error)
			want bool
		}{"Has": {c.Has, has}, "HasTask": {c.HasTask, hasTask}, "Busy": {c.Busy, busy}} {
			if got, err := of.ask(t.Context(), web); err != nil || got != of.want {
				t.Errorf("%s: %s = %v, %v", what, name, got, err)
			}
		}
	}
	want("no task", true, false, false)
	tasks.all["2"] = tasktypes.Status_STOPPED
	want("one has stopped", true, true, false)
	tasks.all["3"] = tasktypes.Status_RUNNING
	want("the next one runs", true, true, true)
	for _, s.fails = range []string{"get", "list", "get task"} {
		if has, err := c.Has(t.Context(), web); s.fails != "get task" && !errdefs.IsUnavailable(err) {
			t.Errorf("%s fails: Has = %v, %v", s.fails, has, err)
		}
		if busy, err := c.Busy(t.Context(), web); !errdefs.IsUnavailable(err) {
			t.Errorf("%s fails: Busy = %v, %v", s.fails, busy, err)
		}
	}
	s.fails, s.all = "", s.all[:1]
	want("gone", false, false, false)
}
