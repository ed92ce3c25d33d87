package client

import (
	"context"
	"sync"
	"testing"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	sandboxesapi "github.com/containerd/containerd/api/services/sandbox/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// taskd is containerd's service of tasks: of the one task that a test has.
type taskd struct {
	tasksapi.UnimplementedTasksServer
	mu     sync.Mutex
	has    bool
	status tasktypes.Status
	calls  []string
	ended  chan struct{}
}

// is has a task with a status.
func (d *taskd) is(status tasktypes.Status) { d.has, d.status = true, status }

func (d *taskd) Get(_ context.Context, req *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.has {
		return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
	}
	return &tasksapi.GetResponse{Process: &tasktypes.Process{ID: req.GetContainerID(), Pid: 1, Status: d.status}}, nil
}

func (d *taskd) Wait(ctx context.Context, _ *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-d.ended:
		return &tasksapi.WaitResponse{}, nil
	}
}

func (d *taskd) Kill(context.Context, *tasksapi.KillRequest) (*emptypb.Empty, error) {
	d.note("kill", tasktypes.Status_STOPPED)
	close(d.ended)
	return &emptypb.Empty{}, nil
}

func (d *taskd) Delete(context.Context, *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error) {
	d.note("delete", tasktypes.Status_STOPPED)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.has = false
	return &tasksapi.DeleteResponse{}, nil
}

func (d *taskd) note(call string, status tasktypes.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.status = append(d.calls, call), status
}

// Get of a container.
func (c *ctrd) Get(ctx context.Context, req *containersapi.GetContainerRequest) (*containersapi.GetContainerResponse,
	error) {
	if c.fails != nil {
		return nil, errgrpc.ToGRPC(c.fails)
	}
	obj, err := c.store.Get(incoming(ctx), req.GetID())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &containersapi.GetContainerResponse{Container: &containersapi.Container{ID: obj.ID, Labels: obj.Labels,
		Runtime: &containersapi.Container_Runtime{Name: obj.Runtime.Name},
		Spec:    &anypb.Any{TypeUrl: obj.Spec.GetTypeUrl(), Value: obj.Spec.GetValue()}}}, nil
}

func (c *ctrd) Delete(ctx context.Context, req *containersapi.DeleteContainerRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, errgrpc.ToGRPC(c.store.Delete(incoming(ctx), req.GetID()))
}

// pods are those that a shim made by its sandbox API.
type pods struct {
	list   []*types.Sandbox
	fails  error
	state  string
	silent error // of the shim
}

// sandboxes is containerd's store of them.
type sandboxes struct {
	sandboxesapi.UnimplementedStoreServer
	of *pods
}

func (s *sandboxes) List(context.Context, *sandboxesapi.StoreListRequest) (*sandboxesapi.StoreListResponse, error) {
	return &sandboxesapi.StoreListResponse{List: s.of.list}, errgrpc.ToGRPC(s.of.fails)
}

// shims answers for their shims.
type shims struct {
	sandboxesapi.UnimplementedControllerServer
	of *pods
}

func (s *shims) Status(context.Context, *sandboxesapi.ControllerStatusRequest,
) (*sandboxesapi.ControllerStatusResponse, error) {
	return &sandboxesapi.ControllerStatusResponse{State: s.of.state}, errgrpc.ToGRPC(s.of.silent)
}

// plainNamespace has no labels.
type plainNamespace struct {
	namespacesapi.UnimplementedNamespacesServer
}

func (plainNamespace) Get(_ context.Context, req *namespacesapi.GetNamespaceRequest,
) (*namespacesapi.GetNamespaceResponse, error) {
	return &namespacesapi.GetNamespaceResponse{Namespace: &namespacesapi.Namespace{Name: req.GetName()}}, nil
}

// web is a VM of the node that this package made.
func (c *ctrd) web(t *testing.T) *nodev1.VM {
	t.Helper()
	c.add(t, "default", "web", "web", godwitRuntime)
	ctx := namespaces.WithNamespace(t.Context(), "default")
	_, err := c.store.Update(ctx, containers.Container{ID: "web", Labels: map[string]string{LabelMade: "yes"}},
		"labels."+LabelMade)
	if err != nil {
		t.Fatal(err)
	}
	return &nodev1.VM{Namespace: "default", Id: "web"}
}
