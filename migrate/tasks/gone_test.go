package tasks

import (
	"context"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// objects is containerd with one container object, its root file system, and no task.
type objects struct {
	containers.Store
	object *containers.Container
	rootfs bool
	fail   map[string]error
}

func (o *objects) Get(context.Context, string) (containers.Container, error) {
	if err := o.fail["Get"]; err != nil || o.object == nil {
		return containers.Container{}, errOr(err, errdefs.ErrNotFound)
	}
	return *o.object, nil
}

func (o *objects) Delete(context.Context, string) error {
	if o.fail["Delete"] == nil {
		o.object = nil
	}
	return o.fail["Delete"]
}

// files is the snapshotter.
type files struct {
	snapshots.Snapshotter
	of *objects
}

func (f files) Remove(context.Context, string) error {
	if f.of.fail["Remove"] == nil {
		f.of.rootfs = false
	}
	return f.of.fail["Remove"]
}

type noTask struct{ tasksapi.TasksClient }

func (noTask) Get(context.Context, *tasksapi.GetRequest, ...grpc.CallOption) (*tasksapi.GetResponse, error) {
	return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
}

func errOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// P-23: behind a deletion the container object goes with its root file system, and nobody
// else's; what fails is tried again.
func TestGone(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		fails  string
		goes   bool
	}{
		"asleep in it":           {labels: map[string]string{LabelDigest: "sha256:1"}, goes: true},
		"asleep in another":      {labels: map[string]string{LabelDigest: "sha256:2"}},
		"made anew, or woken":    {},
		"nerdctl's":              {labels: map[string]string{LabelDigest: "sha256:1", labelNerdctl: "/var/lib/nerdctl/x"}},
		"containerd is away":     {labels: map[string]string{LabelDigest: "sha256:1"}, fails: "Get"},
		"its file system stays":  {labels: map[string]string{LabelDigest: "sha256:1"}, fails: "Remove"},
		"the object is not gone": {labels: map[string]string{LabelDigest: "sha256:1"}, fails: "Delete"},
	} {
		o := &objects{object: &containers.Container{ID: "vm", Labels: c.labels, Snapshotter: "s", SnapshotKey: "k"}, rootfs: true, fail: map[string]error{c.fails: errdefs.ErrUnavailable}}
		client, err := containerd.New("", containerd.WithServices(
			containerd.WithTaskClient(noTask{}), containerd.WithContainerStore(o), containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"s": files{of: o}})))
		if err != nil {
			t.Fatal(err)
		}
		gone := func() error {
			return (&Client{containerd: client}).Gone(t.Context(), &nodev1.VM{Namespace: "ns", Id: "vm"}, "sha256:1")
		}
		if err := gone(); errdefs.IsUnavailable(err) != (c.fails != "") || c.fails == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		o.fail = nil
		again := c.goes || c.fails != ""
		if err := gone(); err != nil || (o.object == nil) != again || o.rootfs == again {
			t.Errorf("%s, once more: object %v, root file system %v, %v", name, o.object, o.rootfs, err)
		}
	}
}
