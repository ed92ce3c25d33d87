package client

import (
	"cmp"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	sandboxesapi "github.com/containerd/containerd/api/services/sandbox/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	ctrmeta "github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// daemon is a godwitd that knows VMs and snapshots.
type daemon struct {
	nodev1.NodeService
	vms       []*nodev1.VMInfo
	snapshots []*nodev1.SnapshotInfo
	events    []*nodev1.NodeEvent
	ranOn     []string
	log       func(*nodev1.LogRequest) (*nodev1.LogResponse, error)
	warning   string // its lists are not whole
	fails     error
	rivals    bool // of each record
	operation *nodev1.Operation
	deletion  *nodev1.Deletion
	forget    error
	forgotten int
	lost      string
	closed    error // no record changes
	guarded   error // no node removes one
}

func (d *daemon) Forget(context.Context, *nodev1.ForgetRequest) (*nodev1.ForgetResponse, error) {
	d.forgotten++
	return &nodev1.ForgetResponse{}, record.ToWire(d.forget)
}

func (d *daemon) Recorded(_ context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	if d.fails != nil {
		return nil, record.ToWire(d.fails)
	}
	if err := cmp.Or(d.closed, d.guarded); req.GetRemoves() && err != nil {
		return nil, record.ToWire(err)
	}
	if d.closed != nil && req.GetChanges() {
		return nil, record.ToWire(d.closed)
	}
	for _, vm := range d.vms {
		if key(vm.GetVm()) == key(req.GetVm()) && vm.GetOwner() != nil {
			return &nodev1.Record{Vm: vm.GetVm(), Owner: vm.GetOwner(), RanOn: d.ranOn, Rivals: d.rivals,
				Operation: d.operation, Lost: d.lost, Deletion: d.deletion}, nil
		}
	}
	return nil, record.ToWire(errdefs.ErrNotFound)
}

func (d *daemon) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	return &nodev1.VMsResponse{Vms: d.vms, Warning: d.warning}, record.ToWire(d.fails)
}

func (d *daemon) Snapshots(_ context.Context, req *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	resp := &nodev1.SnapshotsResponse{Warning: d.warning}
	for _, s := range d.snapshots {
		if req.GetVm() == nil || key(req.GetVm()) == key(s.GetVm()) {
			resp.Snapshots = append(resp.Snapshots, s)
		}
	}
	return resp, record.ToWire(d.fails)
}

func (d *daemon) History(_ context.Context, req *nodev1.HistoryRequest) (*nodev1.HistoryResponse, error) {
	resp := &nodev1.HistoryResponse{}
	for _, ev := range d.events {
		if resp.Last = ev; ev.GetId() > req.GetAfter() {
			resp.Events = append(resp.Events, ev)
		}
	}
	return resp, record.ToWire(d.fails)
}

// over is its service of moves.
type over struct {
	nodev1.MovesService
	*daemon
}

func (o over) Log(_ context.Context, req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	resp, err := o.log(req)
	return resp, record.ToWire(err)
}

func (d *daemon) Info(context.Context, *nodev1.InfoRequest) (*nodev1.InfoResponse, error) {
	return &nodev1.InfoResponse{Node: "b"}, nil
}

// ctrd is containerd's service of containers, on containerd's own store of them.
type ctrd struct {
	containersapi.UnimplementedContainersServer
	store containers.Store
	fails error
	tasks *taskd
	pods  *pods
}

func (c *ctrd) List(ctx context.Context, req *containersapi.ListContainersRequest,
) (*containersapi.ListContainersResponse, error) {
	ctx = incoming(ctx)
	if c.fails != nil {
		return nil, errgrpc.ToGRPC(c.fails)
	}
	list, err := c.store.List(ctx, req.GetFilters()...)
	resp := &containersapi.ListContainersResponse{}
	for _, obj := range list {
		resp.Containers = append(resp.Containers, &containersapi.Container{ID: obj.ID, Labels: obj.Labels,
			Runtime: &containersapi.Container_Runtime{Name: obj.Runtime.Name}})
	}
	return resp, errgrpc.ToGRPC(err)
}

// incoming has the namespace that a caller's metadata name.
func incoming(ctx context.Context) context.Context {
	ns, _ := namespaces.Namespace(ctx)
	return namespaces.WithNamespace(ctx, ns)
}

func (c *ctrd) add(t *testing.T, namespace, id, name, runtime string) {
	t.Helper()
	spec, err := typeurl.MarshalAny(&specs.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.store.Create(namespaces.WithNamespace(t.Context(), namespace), containers.Container{ID: id,
		Labels: map[string]string{LabelName: name}, Runtime: containers.RuntimeInfo{Name: runtime}, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
}

// newNode serves both, and returns a client of them.
func newNode(t *testing.T) (*daemon, *ctrd, *Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "g") // the name of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	db, err := bbolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	meta := ctrmeta.NewDB(db, nil, nil)
	if err := meta.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, c := &daemon{}, &ctrd{store: ctrmeta.NewContainerStore(meta),
		tasks: &taskd{ended: make(chan struct{})}, pods: &pods{}}
	srv := grpc.NewServer()
	containersapi.RegisterContainersServer(srv, c)
	tasksapi.RegisterTasksServer(srv, c.tasks)
	sandboxesapi.RegisterStoreServer(srv, &sandboxes{of: c.pods})
	sandboxesapi.RegisterControllerServer(srv, &shims{of: c.pods})
	namespacesapi.RegisterNamespacesServer(srv, plainNamespace{})
	l, err := net.Listen("unix", filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	serveNode(t, d, filepath.Join(dir, "d"))
	client := New(WithDaemon(filepath.Join(dir, "d")), WithContainerd(filepath.Join(dir, "c")))
	t.Cleanup(func() { _ = client.Close() })
	return d, c, client
}

func serveNode(t *testing.T, d nodev1.NodeService, socket string) {
	t.Helper()
	srv, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterNodeService(srv, d)
	if d, ok := d.(*daemon); ok {
		nodev1.RegisterMovesService(srv, over{daemon: d})
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(context.Background(), l) }()
	t.Cleanup(func() { _ = srv.Close() })
}

var godwitRuntime = config.Default().Containerd.Runtime

func digest(begin string) string { return "sha256:" + begin + strings.Repeat("0", 64-len(begin)) }
