package cli

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// refuser is a daemon of node a whose orders all fail with err.
type refuser struct {
	nodev1.NodeService
	rec *nodev1.Record // of its VM web; nil: it is not known
	err error
	vms []*nodev1.VMInfo
}

// movesRefused are its moves.
type movesRefused struct {
	nodev1.MovesService
	err error
}

func (refuser) Info(context.Context, *nodev1.InfoRequest) (*nodev1.InfoResponse, error) {
	return &nodev1.InfoResponse{Node: "a"}, nil
}

func (r refuser) Recorded(_ context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	if r.rec == nil || req.GetVm().GetId() != "web" {
		return nil, fmt.Errorf("that VM: %w", errdefs.ErrNotFound)
	}
	return r.rec, nil
}

func (r refuser) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	return &nodev1.VMsResponse{Vms: r.vms}, nil
}

func (r refuser) Hibernate(context.Context, *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r refuser) Checkpoint(context.Context, *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r refuser) Schedule(context.Context, *nodev1.ScheduleRequest) (*nodev1.Record, error) {
	return nil, r.err
}

func (r refuser) Forget(context.Context, *nodev1.ForgetRequest) (*nodev1.ForgetResponse, error) {
	return nil, r.err
}

func (r refuser) Delete(context.Context, *nodev1.DeleteRequest) (*nodev1.Record, error) {
	return nil, r.err
}

func (r movesRefused) Wake(context.Context, *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r movesRefused) Migrate(context.Context, *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	return nil, r.err
}

func (r movesRefused) Recover(context.Context, *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	return nil, r.err
}

// served is a daemon on a socket.
func served(t *testing.T, node nodev1.NodeService, moves nodev1.MovesService) string {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterNodeService(srv, node)
	nodev1.RegisterMovesService(srv, moves)
	socket := place(t)
	t.Cleanup(serve(t, srv, socket))
	return socket
}

// refusing serves a daemon that answers err to every order.
func refusing(t *testing.T, err error) string {
	t.Helper()
	return served(t, refuser{err: err, rec: &nodev1.Record{}}, movesRefused{err: err})
}

// fakeContainerd has containers by their ids, without tasks.
type fakeContainerd struct {
	containersapi.UnimplementedContainersServer
	has map[string]*containersapi.Container
}

func (f *fakeContainerd) Get(_ context.Context, req *containersapi.GetContainerRequest,
) (*containersapi.GetContainerResponse, error) {
	if c := f.has[req.GetID()]; c != nil {
		return &containersapi.GetContainerResponse{Container: c}, nil
	}
	return nil, errgrpc.ToGRPC(fmt.Errorf("container %q: %w", req.GetID(), errdefs.ErrNotFound))
}

// List takes the filters of a name and of the beginning of an id (package client makes them).
func (f *fakeContainerd) List(_ context.Context, req *containersapi.ListContainersRequest,
) (*containersapi.ListContainersResponse, error) {
	resp := &containersapi.ListContainersResponse{}
	for id, c := range f.has {
		fits := len(req.GetFilters()) == 0
		for _, filter := range req.GetFilters() {
			_, value, _ := strings.Cut(filter, "=")
			value = strings.Trim(value, `="`)
			fits = fits || strings.HasPrefix(filter, "labels.") && c.GetLabels()["nerdctl/name"] == value ||
				strings.HasPrefix(filter, "id~=") && strings.HasPrefix(id, strings.TrimPrefix(value, "^"))
		}
		if fits {
			resp.Containers = append(resp.Containers, c)
		}
	}
	return resp, nil
}

// noTasks has none.
type noTasks struct {
	tasksapi.UnimplementedTasksServer
}

func (noTasks) Get(context.Context, *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	return nil, errgrpc.ToGRPC(fmt.Errorf("no running task found: %w", errdefs.ErrNotFound))
}

// anyLease gives every lease.
type anyLease struct {
	leasesapi.UnimplementedLeasesServer
}

func (anyLease) Create(_ context.Context, req *leasesapi.CreateRequest) (*leasesapi.CreateResponse, error) {
	return &leasesapi.CreateResponse{Lease: &leasesapi.Lease{ID: req.GetID()}}, nil
}

func (anyLease) Delete(context.Context, *leasesapi.DeleteRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// anyNamespace has no labels.
type anyNamespace struct {
	namespacesapi.UnimplementedNamespacesServer
}

func (anyNamespace) Get(_ context.Context, req *namespacesapi.GetNamespaceRequest) (*namespacesapi.GetNamespaceResponse,
	error) {
	return &namespacesapi.GetNamespaceResponse{Namespace: &namespacesapi.Namespace{Name: req.GetName()}}, nil
}

// oneSnapshotter is a containerd with overlayfs.
type oneSnapshotter struct {
	introspectionapi.UnimplementedIntrospectionServer
}

func (oneSnapshotter) Plugins(context.Context, *introspectionapi.PluginsRequest) (*introspectionapi.PluginsResponse,
	error) {
	return &introspectionapi.PluginsResponse{Plugins: []*introspectionapi.Plugin{{Type: "io.containerd.snapshotter.v1",
		ID: "overlayfs"}}}, nil
}

// oldContainerd is that of Debian 12.
type oldContainerd struct {
	versionapi.UnimplementedVersionServer
}

func (*oldContainerd) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: "1.6.20~ds1"}, nil
}

// containerdWith serves one that has containers of those ids; a name after a slash is that of its label.
func containerdWith(t *testing.T, ids ...string) string {
	t.Helper()
	f := &fakeContainerd{has: map[string]*containersapi.Container{}}
	for _, id := range ids {
		id, name, _ := strings.Cut(id, "/")
		f.has[id] = &containersapi.Container{ID: id, Labels: map[string]string{"nerdctl/name": name},
			Runtime: &containersapi.Container_Runtime{Name: config.Default().Containerd.Runtime}}
	}
	srv := grpc.NewServer()
	containersapi.RegisterContainersServer(srv, f)
	tasksapi.RegisterTasksServer(srv, noTasks{})
	leasesapi.RegisterLeasesServer(srv, anyLease{})
	versionapi.RegisterVersionServer(srv, &oldContainerd{})
	namespacesapi.RegisterNamespacesServer(srv, anyNamespace{})
	introspectionapi.RegisterIntrospectionServer(srv, oneSnapshotter{})
	socket := place(t)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return socket
}
