package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// objects is containerd with one container object at most, its task and its root file system,
// and fails its call number n.
type objects struct {
	containers.Store
	object *containers.Container
	task   *tasktypes.Process
	rootfs bool
	calls  []string
	fails  int

	mu sync.Mutex // of task, which is waited for during all calls
}

func (o *objects) do(name string, there bool) error {
	if o.calls = append(o.calls, name); len(o.calls) == o.fails {
		return fmt.Errorf("%s: %w", name, errdefs.ErrUnavailable)
	}
	if !there {
		return errdefs.ErrNotFound
	}
	return nil
}

func (o *objects) Get(context.Context, string) (containers.Container, error) {
	if err := o.do("get", o.object != nil); err != nil {
		return containers.Container{}, err
	}
	return *o.object, nil
}

func (o *objects) Update(_ context.Context, c containers.Container, _ ...string) (containers.Container, error) {
	if err := o.do("update", o.object != nil); err != nil {
		return c, errgrpc.ToGRPC(err)
	}
	o.object = &c
	return c, nil
}

func (o *objects) Delete(context.Context, string) error {
	if err := o.do("delete", o.object != nil); err != nil {
		return err
	}
	o.object = nil
	return nil
}

// files is the snapshotter.
type files struct {
	snapshots.Snapshotter
	of *objects
}

func (f files) Remove(context.Context, string) error {
	if err := f.of.do("remove files", f.of.rootfs); err != nil {
		return err
	}
	f.of.rootfs = false
	return nil
}

type process struct {
	tasksapi.TasksClient
	of *objects
}

func (p process) Get(context.Context, *tasksapi.GetRequest, ...grpc.CallOption) (*tasksapi.GetResponse, error) {
	return &tasksapi.GetResponse{Process: p.of.task}, errgrpc.ToGRPC(p.of.do("get task", p.of.task != nil))
}

func (p process) Wait(ctx context.Context, _ *tasksapi.WaitRequest, _ ...grpc.CallOption) (*tasksapi.WaitResponse,
	error) {
	p.of.mu.Lock()
	stopped := p.of.task.GetStatus() == tasktypes.Status_STOPPED
	p.of.mu.Unlock()
	if !stopped {
		<-ctx.Done()
	}
	return &tasksapi.WaitResponse{}, ctx.Err()
}

func (p process) Delete(context.Context, *tasksapi.DeleteTaskRequest, ...grpc.CallOption) (*tasksapi.DeleteResponse,
	error) {
	if err := p.of.do("delete task", p.of.task != nil); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.task = nil
	return &tasksapi.DeleteResponse{}, nil
}

// made is a container that was made at a time, with a root file system and a task.
func (o *objects) made(t *testing.T, at int64, status tasktypes.Status, labels map[string]string) {
	t.Helper()
	spec, err := typeurl.MarshalAny(&specs.Spec{Linux: &specs.Linux{}})
	if err != nil {
		t.Fatal(err)
	}
	o.object = &containers.Container{ID: "vm", CreatedAt: time.Unix(0, at), Labels: maps.Clone(labels), Spec: spec,
		Snapshotter: "s", SnapshotKey: "vm"}
	o.task, o.rootfs = &tasktypes.Process{ID: "vm", Pid: 7, Status: status}, true
}

func (o *objects) client(t *testing.T, n *networks) *Client {
	t.Helper()
	c, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(new(shimSandboxes)),
		containerd.WithTaskClient(process{of: o}),
		containerd.WithContainerStore(o),
		containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"s": files{of: o}})))
	if err != nil {
		t.Fatal(err)
	}
	return &Client{containerd: c, networks: n}
}

const (
	taskMade = 1000 // when the task of the VM that leaves was made
	asleepIn = "sha256:1"
)

var leaver = &nodev1.VM{Namespace: "ns", Id: "vm"}

// leaves has the VM leave, each call again until it succeeds; anew comes between both.
func (o *objects) leaves(t *testing.T, c *Client, owner string, created int64, anew func()) {
	t.Helper()
	again := func(what string, do func() error) {
		t.Helper()
		err := do()
		if err != nil && (o.fails == 0 || !errdefs.IsUnavailable(err)) {
			t.Errorf("call %d fails: %s: %v", o.fails, what, err)
		}
		if err != nil {
			if err = do(); err != nil {
				t.Errorf("call %d fails: %s, once more: %v", o.fails, what, err)
			}
		}
	}
	again("MarkDeparted", func() error { return c.MarkDeparted(t.Context(), leaver, created, asleepIn, owner) })
	if anew != nil {
		anew()
	}
	again("CleanDeparted", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return c.CleanDeparted(ctx, leaver, asleepIn, owner)
	})
	if owner == "" {
		again("RemoveDeparted", func() error { return c.RemoveDeparted(t.Context(), leaver, asleepIn) })
	}
}

// each runs a story without a failure, and with one of each call of containerd's in turn.
func each(t *testing.T, story func(o *objects, c *Client, cni *fakeCNI)) {
	t.Helper()
	for fails := 0; ; fails++ {
		n, cni := newFake(t)
		o := &objects{fails: fails}
		story(o, o.client(t, n), cni)
		if len(o.calls) < fails || t.Failed() {
			return
		}
	}
}

// After a deletion the container object goes with its task, its lease and its root file system. After a move it
// stays and is marked. Whatever fails is tried again.
func TestLeaves(t *testing.T) {
	for owner, created := range map[string]int64{"": taskMade, "n2": taskMade, "n3": 0} {
		each(t, func(o *objects, c *Client, cni *fakeCNI) {
			o.made(t, taskMade-1, tasktypes.Status_STOPPED, nil)
			cni.held["ns-vm "] = true
			o.leaves(t, c, owner, created, nil)
			if gone := owner == ""; o.task != nil || len(cni.held) != 0 || (o.object == nil) != gone || o.rootfs == gone {
				t.Errorf("owner %q, call %d fails: task %v, leases %v, object %v, root file system %v", owner, o.fails, o.task,
					cni.held, o.object, o.rootfs)
			}
			if owner != "" && (o.object.Labels[LabelNode] != owner || o.object.Labels[LabelDigest] != asleepIn) {
				t.Errorf("owner %q, call %d fails: labels %v", owner, o.fails, o.object.Labels)
			}
		})
	}
	each(t, func(o *objects, c *Client, _ *fakeCNI) {
		o.made(t, taskMade-1, tasktypes.Status_STOPPED, map[string]string{labelNerdctl: "/var/lib/nerdctl/x"})
		if o.leaves(t, c, "", taskMade, nil); o.object == nil || !o.rootfs {
			t.Errorf("nerdctl's, call %d fails: object %v, root file system %v", o.fails, o.object, o.rootfs)
		}
	})
}

// A container that was made anew under the name, before the VM's was marked or after that, is somebody's: no mark,
// no end of its task or its lease, no deletion.
func TestMadeAnew(t *testing.T) {
	for _, owner := range []string{"", "n2"} {
		for _, status := range []tasktypes.Status{tasktypes.Status_RUNNING, tasktypes.Status_STOPPED} {
			for _, labels := range []map[string]string{nil, {"theirs": "x", labelStopped: "true"},
				{LabelDigest: "sha256:2", labelStopped: "true"}, {labelOrder: "wake/1"}} {
				for _, late := range []bool{false, true} {
					each(t, func(o *objects, c *Client, cni *fakeCNI) {
						var was containers.Container
						anew := func() {
							o.made(t, taskMade+1, status, labels)
							was = *o.object
							cni.held["ns-vm "] = true
						}
						path := c.networks.path(leaver) // what a wake has made here, this one or one before
						if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
							t.Fatal(err)
						}
						if late {
							o.made(t, taskMade-1, tasktypes.Status_STOPPED, nil)
							o.leaves(t, c, owner, taskMade, anew)
						} else {
							anew()
							o.leaves(t, c, owner, taskMade, nil)
						}
						if o.object == nil || !maps.Equal(o.object.Labels, labels) || o.object.Spec != was.Spec || o.task == nil ||
							!o.rootfs || len(cni.held) != 1 || slices.Contains(o.calls, "delete task") {
							t.Errorf("owner %q, %v, labels %v, marked before %v, call %d fails: object %v, task %v, root file system %v, "+
								"leases %v",
								owner, status, labels, late, o.fails, o.object, o.task, o.rootfs, cni.held)
						}
						if _, err := os.Stat(path); (err == nil) != (labels[labelOrder] != "") {
							t.Errorf("labels %v: network namespace: %v", labels, err)
						}
					})
				}
			}
		}
	}
}
