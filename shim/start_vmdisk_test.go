package shim

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/vmm"
)

// diskWorld is one whose image is a VM disk, with a file for the console's output.
func diskWorld(t *testing.T) (w *world, output string) {
	w = newWorld(t)
	w.disk = true
	output = filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(output, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return w, output
}

func (w *world) createDisk(output string) error {
	r := w.bundle()
	r.Stdout = output
	_, err := w.service.Create(ctxNS(w.t), r)
	return err
}

// serialPort is the VMM's end of the VM's serial port.
func (w *world) serialPort() net.Conn {
	w.t.Helper()
	l, err := net.Listen("unix", w.machine.cfg.Serial)
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// Of a VM disk: whatever fails in its Create or Start, nothing of it is left.
func TestVMDiskFailsAtEachCall(t *testing.T) {
	disk := func(w *world) { w.disk = true }
	failEach(t, disk, (*world).create, func(_ *testing.T, w *world, _ string) {
		w.nothingLeft()
		w.must("create again", w.create())
	})
	failEach(t, func(w *world) {
		disk(w)
		w.must("create", w.create())
	}, (*world).start, func(t *testing.T, w *world, name string) {
		if name == "prepare VM disk" || name == "dial" {
			t.Errorf("%s in a Start", name)
		}
		if s := w.service.vm.journal.Load(); s.Spec.HasAgent() {
			t.Error("the VM has an agent")
		}
	})
}

// TestVMDiskConfig: what the VMM is told, before a sleep and after it: firmware and its
// variables are no block devices of the guest, and a reset boots again.
func TestVMDiskConfig(t *testing.T) {
	w, _ := diskWorld(t)
	w.asleep()
	w.must("create", w.create())
	w.must("start", w.start())
	for what, cfg := range map[string]vmm.Config{"after the wake": w.machine.cfg} {
		if !cfg.Reboots || cfg.Serial == "" || cfg.Console != nil || cfg.HyperV || cfg.Firmware == nil || cfg.NVRAM == nil ||
			cfg.Kernel != "" {
			t.Errorf("%s: %+v", what, cfg)
		}
		if len(cfg.Disks) != 1 || cfg.Disks[0].ID != "disk" || cfg.Disks[0].Slot != firstDiskSlot || cfg.Disks[0].ReadOnly {
			t.Errorf("%s: disks %+v", what, cfg.Disks)
		}
	}
	s := w.service.vm.spec()
	if err := s.Check(); err != nil {
		t.Errorf("Spec: %v", err)
	}
	// The container that another node makes says what it is.
	if got := s.Container.OCI.Annotations[spec.AnnotationPrefix+"disk"]; got != "/disk/x.raw" || s.VMDisk.Path != got {
		t.Errorf("disk %q, annotation %q", s.VMDisk.Path, got)
	}
}

// TestVMDiskTask (issue 5, item 7): stdio is the serial console, signals press the power button, and nothing is
// executed inside. The guest's power-off is status 0, told after its last line is where it belongs.
func TestVMDiskTask(t *testing.T) {
	w, output := diskWorld(t)
	w.must("create", w.createDisk(output))
	w.must("start", w.start())
	port := w.serialPort()
	ctx, vm := ctxNS(t), w.service.vm
	said := func(text string) func() bool {
		return func() bool {
			data, _ := os.ReadFile(output)
			return strings.Contains(string(data), text)
		}
	}
	fmt.Fprint(port, "login: ")
	if !eventually(said("login: ")) {
		t.Error("the console's output does not arrive")
	}
	if _, err := w.service.Exec(ctx, execRequest("e")); !errdefs.IsNotImplemented(errgrpc.ToNative(err)) ||
		!strings.Contains(err.Error(), "no agent") {
		t.Errorf("exec: %v", err)
	}
	if _, err := w.service.Update(ctx, &taskapi.UpdateTaskRequest{ID: "vm"}); !errdefs.IsNotImplemented(
		errgrpc.ToNative(err)) {
		t.Errorf("update: %v", err)
	}
	for name, err := range map[string]error{
		"resize": second(w.service.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: "vm", Width: 80, Height: 25})),
		"close":  second(w.service.CloseIO(ctx, &taskapi.CloseIORequest{ID: "vm", Stdin: true})),
		"pause":  second(w.service.Pause(ctx, &taskapi.PauseRequest{ID: "vm"})),
		"resume": second(w.service.Resume(ctx, &taskapi.ResumeRequest{ID: "vm"})),
		"stats":  second(w.service.Stats(ctx, &taskapi.StatsRequest{ID: "vm"})),
		"winch":  w.signal(unix.SIGWINCH),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.machine.pressed(); n != 0 {
		t.Errorf("the button was pressed %d times", n)
	}
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		w.must("kill", w.signal(s))
	}
	if n := w.machine.pressed(); n != 2 {
		t.Errorf("the button was pressed %d times", n)
	}
	fmt.Fprint(port, "the last line")
	port.Close()
	w.machine.powerOff()
	<-vm.owner.init.done
	if vm.owner.init.status != 0 || !said("the last line")() {
		data, _ := os.ReadFile(output)
		t.Errorf("status %d, output %q", vm.owner.init.status, data)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// TestVMDiskIsKilled: the guest is not asked.
func TestVMDiskIsKilled(t *testing.T) {
	w, output := diskWorld(t)
	w.must("create", w.createDisk(output))
	w.must("start", w.start())
	w.must("kill", w.signal(unix.SIGKILL))
	<-w.service.vm.owner.init.done
	if s := w.service.vm.owner.init.status; s != 137 {
		t.Errorf("status %d", s)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// TestVMDiskSleeps: the console goes on where it was, also where the capture is taken
// back.
func TestVMDiskSleeps(t *testing.T) {
	w, output := diskWorld(t)
	w.must("create", w.createDisk(output))
	w.must("start", w.start())
	port := w.serialPort()
	fmt.Fprint(port, "before")
	vm := w.service.vm
	if !eventually(func() bool { return vm.owner.init.pump.Offsets().Stdout == 6 }) {
		t.Fatal("the output does not arrive")
	}
	if _, err := w.capture(); err != nil {
		t.Fatal(err)
	}
	w.must("abort", vm.op.capture.abort(Captured))
	fmt.Fprint(port, " and after")
	if !eventually(func() bool { data, _ := os.ReadFile(output); return string(data) == "before and after" }) {
		t.Error("the output does not go on")
	}
	if s := w.store.config; s.Spec.VMDisk == nil || s.Spec.VMDisk.Boot != spec.BootUEFI ||
		!strings.Contains(string(s.Resume), `"stdout":6`) {
		t.Errorf("snapshot of %+v: %s", s.Spec.VMDisk, s.Resume)
	}
}

func second[A any](_ A, err error) error { return err }

func (w *world) signal(s unix.Signal) error {
	_, err := w.service.Kill(ctxNS(w.t), &taskapi.KillRequest{ID: "vm", Signal: uint32(s)})
	return err
}
