package shim

import (
	"os"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/loopdevice"
	"godwit.dev/godwit/shim/journal"
)

// loopDevice is a block device of the node.
func loopDevice(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	return loopdevice.New(t, 1<<20)
}

// withDevice gives a request's container a block device.
func (w *world) withDevice(r *taskapi.CreateTaskRequest, path, access string) *taskapi.CreateTaskRequest {
	w.t.Helper()
	return w.withDevices(r, access, path)
}

func (w *world) withDevices(r *taskapi.CreateTaskRequest, access string, paths ...string) *taskapi.CreateTaskRequest {
	w.t.Helper()
	return w.edit(r, func(oci *specs.Spec) {
		oci.Linux.Resources = &specs.LinuxResources{}
		for i, path := range paths {
			var st unix.Stat_t
			w.must("stat device", unix.Stat(path, &st))
			major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
			oci.Linux.Devices = append(oci.Linux.Devices, specs.LinuxDevice{Path: "/dev/xvd" + string(rune('a'+i)), Type: "b",
				Major: major, Minor: minor})
			oci.Linux.Resources.Devices = append(oci.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "b",
				Major: &major, Minor: &minor, Access: access})
		}
	})
}

func (w *world) createWithDevice(id, path, access string) error {
	_, err := w.service.Create(ctxNS(w.t), w.withDevice(w.memberRequest(id, "alpine"), path, access))
	return err
}

// TestPodDevice: a device is a disk of the VM while a container has it. The VM then cannot sleep, and the guest is
// asked to flush before the pod's end.
func TestPodDevice(t *testing.T) {
	path := loopDevice(t)
	w := newWorld(t).runningPod("web")
	vm, err := w.service.current()
	w.must("find VM", err)
	if ids := vm.spec().NodeDevices(); len(ids) != 0 {
		t.Errorf("a pod without devices has %q", ids)
	}
	w.must("create db", w.createWithDevice("db", path, "rw"))
	w.must("create log", w.createWithDevice("log", path, "rw"))
	ids := vm.spec().NodeDevices()
	if len(ids) != 1 || !slices.Contains(w.machine.plugged(), ids[0]) {
		t.Fatalf("devices %q, plugged in %q", ids, w.machine.plugged())
	}
	w.agent.mu.Lock()
	got := w.agent.pod.containers["c2"]
	w.agent.mu.Unlock()
	if d := got.GetDevices(); len(d) != 1 || d[0].GetSerial() != ids[0] || d[0].GetPath() != "/dev/xvda" ||
		d[0].GetReadOnly() || got.GetOpenDevices() {
		t.Errorf("the guest is asked for %+v", got)
	}
	if err := w.createWithDevice("reader", path, "r"); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("read-only in one container, writable in another: %v", err)
	}
	w.must("delete db", w.deleteTask("db"))
	if !slices.Contains(w.machine.plugged(), ids[0]) {
		t.Error("a device was unplugged that another container has")
	}
	w.must("delete log", w.deleteTask("log"))
	if slices.Contains(w.machine.plugged(), ids[0]) || len(vm.spec().NodeDevices()) != 0 ||
		len(vm.journal.Load().Disks) != len(vm.spec().Disks) {
		t.Errorf("plugged in %q, journal %+v", w.machine.plugged(), vm.journal.Load().Disks)
	}
	w.must("create reader", w.createWithDevice("reader", path, "r"))
	if d := vm.spec().Disk(ids[0]); d == nil || !d.ReadOnly || d.Type != spec.TypeRaw {
		t.Errorf("a read-only device is %+v", d)
	}
}

// TestPodDeviceInUse: a device that the node, or another pod, has is refused, and the pod runs on.
func TestPodDeviceInUse(t *testing.T) {
	path := loopDevice(t)
	w := newWorld(t).runningPod("web")
	other, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	w.must("open device", err)
	if err := w.createWithDevice("db", path, "rw"); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("a device in use: %v", err)
	}
	vm, err := w.service.current()
	w.must("find VM", err)
	if len(vm.spec().NodeDevices()) != 0 || len(vm.journal.Load().Members) != 1 || !vm.inState(Running) {
		t.Errorf("after a refusal: %+v, VM is %s", vm.journal.Load().Members, vm.state)
	}
	w.must("close device", other.Close())
	w.must("create db", w.createWithDevice("db", path, "rw"))
}

// TestPodDeviceFailures: a Create that fails at any call leaves no device plugged in.
func TestPodDeviceFailures(t *testing.T) {
	path := loopDevice(t)
	for n := 1; ; n++ {
		w := newWorld(t).runningPod()
		r := w.withDevice(w.memberRequest("db", "alpine"), path, "rw")
		w.arm(n)
		_, err := w.service.Create(ctxNS(t), r)
		fired := w.fired()
		w.arm(0)
		if fired == "" {
			w.must("create", err)
			return
		}
		vm, lost := w.service.current()
		w.must("find VM", lost)
		if err == nil || len(vm.spec().NodeDevices()) != 0 || slices.ContainsFunc(w.machine.plugged(), func(id string) bool {
			return id[:3] == "dev"
		}) {
			t.Errorf("%s failed: %v, plugged in %q", fired, err, w.machine.plugged())
		}
	}
}

// TestPodDeviceOfNoContainer: a Create fails when it has plugged a device in, and before its container has an id: the
// next device is in use, or the journal cannot be written. The node has the device back.
func TestPodDeviceOfNoContainer(t *testing.T) {
	path, used := loopDevice(t), loopDevice(t)
	other, err := os.OpenFile(used, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for name, devices := range map[string][]string{"in use": {path, used}, "full disk": {path}} {
		w := newWorld(t).runningPod("web")
		vm, err := w.service.current()
		w.must("find VM", err)
		plugged, free := false, func() {}
		w.at("add disk", func() error {
			if plugged = true; name == "full disk" {
				free = w.fullUnder("vm")
			}
			return nil
		})
		_, err = w.service.Create(ctxNS(t), w.withDevices(w.memberRequest("db", "alpine"), "rw", devices...))
		w.at("add disk", whole)
		free()
		if err == nil || !plugged {
			t.Fatalf("%s: create: %v; a device was plugged in: %t", name, err, plugged)
		}
		if !eventually(func() bool { return len(vm.spec().NodeDevices()) == 0 }) || len(w.machine.plugged()) != 1 {
			t.Errorf("%s: the VM has disks %q, its Spec devices %q", name, w.machine.plugged(), vm.spec().NodeDevices())
		}
	}
}

// TestPodDeviceStays: every operation on a pod that has a block device of its node is refused by the device's name,
// before the VM stands still. The pod runs on, and can sleep once no container has the device.
func TestPodDeviceStays(t *testing.T) {
	path := loopDevice(t)
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.runningPod("web")
	w.must("create db", w.createWithDevice("db", path, "rw"))
	w.must("start db", w.startTask("db"))
	m := w.machineService()
	w.at("pause", func() error { t.Error("the VM was paused"); return nil })
	for what, do := range map[string]func() error{
		"hibernate": func() error { _, err := w.capture(); return err },
		"checkpoint": func() error {
			_, err := m.Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r", Tag: "t",
				Checkpoint: true})
			return err
		},
		"move": func() error { _, err := w.offer(); return errgrpc.ToGRPC(err) },
	} {
		err := errgrpc.ToNative(do())
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "device /dev/xvda of container db") {
			t.Errorf("%s of a pod with a device: %v", what, err)
		}
	}
	w.at("pause", func() error { return nil })
	if got := w.stateOf("db"); got != tasktypes.Status_RUNNING {
		t.Errorf("db is %s", got)
	}
	w.agent.exit("c2") <- 0
	w.waitFor("db")
	w.must("delete db", w.deleteTask("db"))
	_, err := w.capture()
	w.must("capture without the device", err)
}

// TestPodDeviceOfASnapshot: neither does a container with a device become one that the snapshot has without.
func TestPodDeviceOfASnapshot(t *testing.T) {
	path := loopDevice(t)
	w := sleepingPod(t, true)
	w.must("wake", w.armed("web"))
	if err := w.createWithDevice("log", path, "rw"); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) ||
		!strings.Contains(err.Error(), "block devices") {
		t.Errorf("a container with a device that the snapshot has without: %v", err)
	}
}

// TestPodDeviceIsNotLetGo: the guest does not let go of a device, or of the file system on it, when its last container
// is deleted. Once the guest has, the node has the device back, without another call.
func TestPodDeviceIsNotLetGo(t *testing.T) {
	for _, call := range []string{"remove disk", "remove volume"} {
		path := loopDevice(t)
		w := newWorld(t).runningPod()
		vm, err := w.service.current()
		w.must("find VM", err)
		w.must("create db", w.createWithDevice("db", path, "rw"))
		id := vm.spec().NodeDevices()[0]
		w.must("have a file system on it", vm.write(func(j *journal.Journal) {
			s := j.Spec.Clone()
			s.Pod.Volumes = append(s.Pod.Volumes, spec.Volume{ID: "v1", Kind: spec.VolumeMounted, Disk: id})
			j.Spec = s
		}))
		w.at(call, broken)
		w.must("delete db", w.deleteTask("db"))
		if !slices.Contains(w.machine.plugged(), id) {
			t.Errorf("%s failed, and the device is gone", call)
		}
		w.at(call, whole)
		if !eventually(func() bool { return len(vm.spec().NodeDevices()) == 0 }) || slices.Contains(w.machine.plugged(), id) {
			t.Errorf("%s failed once, and the VM has %q for ever", call, w.machine.plugged())
		}
	}
}
