package tasks

import (
	"context"
	"fmt"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
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

// shimSandboxes are those that a shim made by its sandbox API.
type shimSandboxes struct {
	sandbox.Store
	all []sandbox.Sandbox
	err error
}

func (s *shimSandboxes) List(context.Context, ...string) ([]sandbox.Sandbox, error) {
	return s.all, s.err
}

// TestSandboxIsFound: a sandbox without a container counts as one. What cannot be read is not "no".
func TestSandboxIsFound(t *testing.T) {
	metadata := func(text string) map[string]typeurl.Any {
		return map[string]typeurl.Any{"metadata": &anypb.Any{Value: []byte(text)}}
	}
	const named = `{"Version": "v1", "Metadata": {"Config": {"metadata": {"namespace": "team"},
		"annotations": {"godwit.dev/vm": "web"}}}}`
	for what, tt := range map[string]struct {
		s    shimSandboxes
		vm   string
		want bool
		bad  bool
	}{
		"by its id": {shimSandboxes{all: []sandbox.Sandbox{{ID: "s1", Sandboxer: "shim",
			Extensions: metadata(`{}`)}}}, "s1", true, false},
		"by the name of its VM": {shimSandboxes{all: []sandbox.Sandbox{{ID: "s1", Sandboxer: "shim",
			Extensions: metadata(named)}}}, "team.web", true, false},
		"of another pod": {shimSandboxes{all: []sandbox.Sandbox{{ID: "s1", Sandboxer: "shim",
			Extensions: metadata(named)}}}, "s1", false, false},
		"of a pause container that is gone": {shimSandboxes{all: []sandbox.Sandbox{{ID: "s1",
			Sandboxer: "podsandbox"}}}, "s1", false, false},
		"without the API":       {shimSandboxes{err: errdefs.ErrNotImplemented}, "s1", false, false},
		"that cannot be listed": {shimSandboxes{err: errdefs.ErrUnavailable}, "s1", false, true},
		"that cannot be read": {shimSandboxes{all: []sandbox.Sandbox{{ID: "s1", Sandboxer: "shim",
			Extensions: metadata("no JSON")}}}, "s1", false, true},
	} {
		ctr, err := containerd.New("", containerd.WithServices(containerd.WithContainerStore(&sandboxes{}),
			containerd.WithSandboxStore(&tt.s)))
		if err != nil {
			t.Fatal(err)
		}
		has, err := (&Client{containerd: ctr}).Has(t.Context(), &nodev1.VM{Namespace: "k8s.io", Id: tt.vm})
		if has != tt.want || (err != nil) != tt.bad {
			t.Errorf("a sandbox %s: %t, %v", what, has, err)
		}
	}
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
	named := func(id, name string) containers.Container {
		oci := fmt.Sprintf(`{"annotations": {"io.kubernetes.cri.sandbox-namespace": "team", "godwit.dev/vm": %q}}`, name)
		return containers.Container{ID: id, Labels: map[string]string{"io.cri-containerd.kind": "sandbox"},
			Spec: &anypb.Any{Value: []byte(oci)}}
	}
	s := &sandboxes{all: []containers.Container{named("1", "other"), named("2", "web"), named("3", "web")}}
	tasks := sandboxTasks{of: s, all: map[string]tasktypes.Status{"1": tasktypes.Status_RUNNING}}
	ctr, err := containerd.New("", containerd.WithServices(containerd.WithTaskClient(tasks),
		containerd.WithContainerStore(s), containerd.WithSandboxStore(&shimSandboxes{})))
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
