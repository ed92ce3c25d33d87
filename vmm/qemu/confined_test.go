//go:build integration

package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/kvm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// startConfined starts a VM whose VMM is to be env.User. It looks at its process while the guest
// runs, if it shall, and at its end by SIGTERM.
func startConfined(t *testing.T, env vmmtest.Env, runs bool, change func(*vmm.Config)) {
	t.Helper()
	ram, err := os.Create(filepath.Join(t.TempDir(), "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	if err := errors.Join(ram.Truncate(int64(env.Memory)), ram.Chown(env.User, -1)); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(env.Dir, "vm")
	if err != nil {
		t.Fatal(err)
	}
	cfg := vmm.Config{
		Name: t.Name(), Dir: dir, Memory: env.Memory, VCPUs: 1, RAM: ram, Agent: filepath.Join(dir, "agent.sock"),
		Kernel: env.Kernel, Initrd: env.Initrd, Cmdline: env.Cmdline, Cgroup: []string{t.TempDir()}, Track: vmm.TrackWrites,
	}
	if change != nil {
		change(&cfg)
	}
	m, err := env.Driver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if runs {
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pid := m.Process().PID
	if err := vmmtest.Confined(pid, env.User, nil); err != nil {
		t.Error(err)
	}
	if err := vmmtest.Observed(m.Process(), ram); err != nil {
		t.Error(err)
	}
	// Process 1 of a pid namespace heeds what it handles.
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-m.Done()
	if exit := m.Exit(); exit.Status != 0 || exit.Clean {
		t.Errorf("after SIGTERM: %+v", exit)
	}
}

// TestConfined: QEMU is a user of its own, filtered, without rights, alone and in its
// cgroup; root can still look at its RAM.
func TestConfined(t *testing.T) {
	startConfined(t, realEnv(t, Driver{}), true, nil)
}

// QEMU is no less confined where it is to be root, which is without capabilities too.
func TestConfinedRoot(t *testing.T) {
	env := realEnv(t, Driver{AllowRoot: true})
	env.User = 0
	startConfined(t, env, true, nil)
}

// Nor where kernel, initramfs and a layer are for root alone, and a disk is a device.
func TestConfinedPrivateFiles(t *testing.T) {
	env := realEnv(t, Driver{})
	dir := t.TempDir()
	closed := func(name, from string) string {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	open := func(path string) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	image := closed("image", env.Initrd)
	if err := os.Truncate(image, 8<<20); err != nil {
		t.Fatal(err)
	}
	loop, err := vmmtest.Loop(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loop.Close() })
	startConfined(t, env, true, func(c *vmm.Config) {
		c.Kernel, c.Initrd = closed("kernel", c.Kernel), closed("initrd", c.Initrd)
		c.Disks = []vmm.Disk{
			{ID: "layer", Serial: "layer", Slot: FirstDiskSlot, ReadOnly: true, File: open(c.Initrd)},
			{ID: "rw", Serial: "rw", Slot: FirstDiskSlot + 1, File: loop},
		}
	})
}

// privateDev is set for the part of TestConfinedKVM that has a /dev of its own.
const privateDev = "GODWIT_TEST_PRIVATE_DEV"

// Nor where /dev/kvm is for root alone: it gets a node of its own. Whether the KVM of this host
// could run its guest is another question: it does not run.
func TestConfinedKVM(t *testing.T) {
	if os.Getenv(privateDev) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestConfinedKVM$", "-test.v")
		cmd.Env = append(os.Environ(), privateDev+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), "--- SKIP") {
			t.Skip("NOT RUN: no KVM that QEMU starts with")
		}
		return
	}
	var node unix.Stat_t
	if err := unix.Stat("/dev/kvm", &node); err != nil {
		t.Skip("no KVM:", err)
	}
	try := exec.Command("qemu-system-x86_64", "-accel", "kvm", "-S", "-nodefaults", "-display", "none",
		"-monitor", "stdio")
	try.Stdin = strings.NewReader("quit\n")
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("no KVM: %v: %s", err, out)
	}
	env, dir := realEnv(t, Driver{Accel: "kvm", host: kvm.Host{Device: "/dev/kvm", Modules: fakeModules(t)}}), t.TempDir()
	kvmNode := filepath.Join(dir, "kvm")
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := errors.Join(unix.Mknod(kvmNode, unix.S_IFCHR|0o600, int(node.Rdev)),
		unix.Mount(kvmNode, "/dev/kvm", "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	startConfined(t, env, false, func(c *vmm.Config) { c.CPU = "qemu64" })
}

func fakeModules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "kvm_intel"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
