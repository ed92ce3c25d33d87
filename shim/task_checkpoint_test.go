package shim

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// daemon is a node's that has the shim of w take checkpoints.
type daemon struct {
	*world
	op *nodev1.Operation
}

func (d *daemon) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	if err := d.call("order checkpoint"); err != nil {
		return nil, err
	}
	d.op = &nodev1.Operation{Id: req.GetOperation(), Repository: "r", Phase: nodev1.Phase_PHASE_TRANSFERRING}
	ref := d.ref()
	ref.Operation = req.GetOperation()
	r, err := d.machineService().Capture(ctx, &machinev1.CaptureRequest{Ref: ref, Repository: "r", Checkpoint: true,
		Paused: req.GetPaused()})
	d.op.Phase, d.op.Digest = nodev1.Phase_PHASE_SUCCEEDED, r.GetDigest()
	if err != nil {
		err = errgrpc.ToNative(err)
		d.op.Phase, d.op.Reason, d.op.Class = nodev1.Phase_PHASE_FAILED, err.Error(), record.Class(err)
		return &nodev1.StatusResponse{Operation: d.op}, nil
	}
	d.records.rec.Snapshots = append(d.records.rec.Snapshots, &nodev1.SnapshotRef{
		Digest: r.GetDigest(), Repository: "r", Operation: ref.Operation, Generation: ref.Generation, Checkpoint: true,
	})
	return &nodev1.StatusResponse{Operation: d.op}, nil
}

func (d *daemon) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{Operation: d.op, Settled: true}, d.call("status")
}

func (d *daemon) Expected(context.Context, *nodev1.VM) (*nodev1.ExpectedResponse, error) {
	return nil, errdefs.ErrUnavailable
}

func (d *daemon) Image(context.Context, string, string) (string, error) {
	return "", errdefs.ErrUnavailable
}

// ordering is a world whose VM runs and whose daemon takes orders.
func ordering(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.orders = &daemon{world: w}
	return w.running()
}

func (w *world) taskCheckpoint(dir string) error {
	_, err := w.service.Checkpoint(ctxNS(w.t), &taskapi.CheckpointTaskRequest{ID: "vm", Path: dir})
	return errgrpc.ToNative(err)
}

// containerd's checkpoint of a task, paused by its client or not, holds a pointer; the task
// is as it was.
func TestTaskCheckpoint(t *testing.T) {
	w := ordering(t)
	dir := t.TempDir()
	w.must("checkpoint", w.taskCheckpoint(dir))
	w.wantFree("after it")
	var p pointer
	data, err := os.ReadFile(filepath.Join(dir, pointerFile))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil || p.Digest != "sha256:"+hexDigest || p.Repository != "r" || p.VM != "ns/vm" || len(data) > 1000 {
		t.Errorf("pointer %s: %v", data, err)
	}
	_, err = w.service.Pause(ctxNS(t), &taskapi.PauseRequest{ID: "vm"})
	w.must("pause", err)
	w.must("checkpoint of a paused task", w.taskCheckpoint(t.TempDir()))
	if vm, _ := w.service.current(); !vm.inState(Paused) {
		t.Errorf("VM is %s", vm.state)
	}
}

func TestTaskCheckpointIsRefused(t *testing.T) {
	w := ordering(t)
	if err := w.taskCheckpoint(""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("nowhere: %v", err)
	}
	for name, o := range map[string]*runcoptions.CheckpointOptions{"exit": {Exit: true}, "image path": {ImagePath: "/x"}} {
		any, err := anypb.New(o)
		w.must(name, err)
		_, err = w.service.Checkpoint(ctxNS(t), &taskapi.CheckpointTaskRequest{ID: "vm", Path: t.TempDir(), Options: any})
		if !errdefs.IsNotImplemented(errgrpc.ToNative(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.store.failUpload = true
	if err := w.taskCheckpoint(t.TempDir()); err == nil || !strings.Contains(err.Error(), "failed on purpose") {
		t.Errorf("a checkpoint that fails: %v", err)
	}
	w.wantFree("after all that")
	w = newWorld(t).running()
	if err := w.taskCheckpoint(t.TempDir()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without a daemon: %v", err)
	}
}

// deleted is a world whose task has ended after its checkpoint.
func deleted(t *testing.T) (*world, string) {
	t.Helper()
	w, dir := ordering(t), t.TempDir()
	w.must("checkpoint", w.taskCheckpoint(dir))
	w.must("kill", w.machine.Kill(t.Context()))
	vm, _ := w.service.current()
	if !eventually(func() bool { return vm.inState(Stopped) }) {
		t.Fatalf("VM is %s", vm.state)
	}
	w.must("delete", w.delete())
	w.restart()
	return w, dir
}

func (w *world) createFrom(dir string) error {
	r := w.bundle()
	r.Checkpoint = dir
	_, err := w.service.Create(ctxNS(w.t), r)
	return errgrpc.ToNative(err)
}

// A Create with that checkpoint restores it, by an operation that forces it, and the VM runs
// under a new generation.
func TestCreateFromACheckpoint(t *testing.T) {
	w, dir := deleted(t)
	generation := w.records.rec.GetGeneration()
	w.must("create", w.createFrom(dir))
	if got := w.records.forced; got != "sha256:"+hexDigest {
		t.Errorf("the wake forces %q", got)
	}
	w.must("start", w.start())
	w.wantFree("restored")
	if rec := w.records.rec; rec.GetOwner().GetNode() != "a" || rec.GetGeneration() <= generation ||
		rec.GetOperation() != nil {
		t.Errorf("record %v", rec)
	}
}

// It fails at each call as a restore does, and leaves nothing.
func TestCreateFromACheckpointFailsAtEachCall(t *testing.T) {
	dirs := map[*world]string{}
	for n := 1; n < 100; n++ {
		w, dir := deleted(t)
		dirs[w] = dir
		w.arm(n)
		err := w.createFrom(dir)
		name := w.fired()
		w.arm(0)
		if name == "" {
			w.must("without a fault", err)
			if n < 4 {
				t.Fatalf("only %d calls could fail", n-1)
			}
			return
		}
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.nothingLeft()
			if w.records.rec.GetOperation() != nil || w.records.rec.GetOwner().GetNode() != "" && name != "end ownership" {
				t.Errorf("record %v", w.records.rec)
			}
			w.must("create again", w.createFrom(dir))
		})
	}
}

// What is no checkpoint of this VM, or would take a VM away from somebody, is refused by
// name, and Create does not say Unimplemented: containerd would try an older API.
func TestCreateFromACheckpointIsRefused(t *testing.T) {
	w, dir := deleted(t)
	text := func(s string) string {
		d := t.TempDir()
		w.must("write", os.WriteFile(filepath.Join(d, pointerFile), []byte(s), 0o600))
		return d
	}
	for name, c := range map[string]struct {
		dir   string
		is    func(error) bool
		says  string
		given func()
	}{
		"nothing":   {dir: t.TempDir(), is: errdefs.IsInvalidArgument, says: "none of this runtime's"},
		"garbage":   {dir: text("{"), is: errdefs.IsInvalidArgument, says: "names no snapshot"},
		"no digest": {dir: text("{}"), is: errdefs.IsInvalidArgument, says: "names no snapshot"},
		"later version": {dir: text(`{"version":9,"vm":"ns/vm","digest":"sha256:1"}`), is: errdefs.IsInvalidArgument,
			says: "version 9"},
		"another VM": {dir: text(`{"version":1,"vm":"ns/other","digest":"sha256:1"}`), is: errdefs.IsFailedPrecondition,
			says: "ns/other"},
		"deleted": {dir: text(`{"version":1,"vm":"ns/vm","digest":"sha256:1"}`), is: errdefs.IsFailedPrecondition,
			says: "does not list"},
		"runs elsewhere": {dir: dir, is: errdefs.IsFailedPrecondition, says: "node b", given: func() {
			w.records.rec.Owner = &nodev1.Owner{Node: "b"}
		}},
		"under an order": {dir: dir, is: errdefs.IsFailedPrecondition, says: "operation x", given: func() {
			w.records.rec.Operation = &nodev1.Operation{Id: "x"}
		}},
	} {
		w.records.rec.Owner, w.records.rec.Operation = &nodev1.Owner{}, nil
		if c.given != nil {
			c.given()
		}
		if err := w.createFrom(c.dir); err == nil || !c.is(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		w.nothingLeft()
	}
}

// A daemon that restarts while a task is checkpointed costs nothing: the order goes on, and
// who waits for it holds the task paused.
func TestTaskCheckpointOverARestart(t *testing.T) {
	w := ordering(t)
	away := 3
	w.faults.at("status", func() error {
		if away--; away >= 0 {
			return errdefs.ErrUnavailable
		}
		return nil
	})
	w.must("checkpoint", w.taskCheckpoint(t.TempDir()))
	if away >= 0 {
		t.Error("the daemon was not asked again")
	}
}

// The directory of a checkpoint may be anybody's: what its owner has put under the pointer's name is neither written
// through nor read through, and a pipe there hangs no call.
func TestCheckpointInAForeignDirectory(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	name := filepath.Join(dir, pointerFile)
	p := &pointer{Version: pointerVersion, VM: "ns/vm", Digest: "sha256:00"}
	for what, put := range map[string]func() error{
		"link": func() error { return os.Symlink(victim, name) },
		"pipe": func() error { return unix.Mkfifo(name, 0o600) },
		"file": func() error { return os.WriteFile(name, []byte("{}"), 0o666) },
	} {
		for _, err := range []error{os.WriteFile(victim, []byte("root's"), 0o600), put()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if f, err := openPointer(dir); (err == nil) != (what == "file") {
			t.Errorf("%s is opened: %v, %v", what, f, err)
		}
		if err := p.write(dir); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if data, err := os.ReadFile(victim); string(data) != "root's" || err != nil {
			t.Errorf("%s: root's file has %q, %v", what, data, err)
		}
		info, err := os.Lstat(name)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: the pointer is %v, %v", what, info, err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}
