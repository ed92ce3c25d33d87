//go:build kvmhost

package cloudhypervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// startReal makes a VM that is killed when the test ends.
func startReal(t *testing.T, env vmmtest.Env, change func(*vmm.Config)) *Machine {
	t.Helper()
	ram, err := os.Create(filepath.Join(env.Dir, "ram"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ram.Close() })
	if err := errors.Join(ram.Truncate(int64(env.Memory)), ram.Chown(env.User, -1)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(env.Dir, "vm")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := vmm.Config{
		Name: t.Name(), Dir: dir, Memory: env.Memory, VCPUs: 1, RAM: ram, Agent: filepath.Join(dir, "agent.sock"),
		Kernel: env.Kernel, Initrd: env.Initrd, Cmdline: env.Cmdline,
	}
	if change != nil {
		change(&cfg)
	}
	m, err := env.Driver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m.(*Machine)
}

// TestConfined: no thread that runs the guest or its devices gains rights or makes calls beyond its filter. Files
// outside of the VM's directory are out of reach.
func TestConfined(t *testing.T) {
	env, cgroup := realEnv(t), filepath.Join("/sys/fs/cgroup", filepath.Base(t.TempDir())+"-vmm")
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(cgroup) })
	var ram *os.File
	m := startReal(t, env, func(c *vmm.Config) { ram, c.Cgroup, c.Track = c.RAM, []string{cgroup}, vmm.TrackWrites })
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := m.Process().PID
	if err := vmmtest.Confined(pid, env.User, func(thread string) bool {
		return vmmtest.ButTheFirst(pid, thread)
	}); err != nil {
		t.Error(err)
	}
	if err := vmmtest.Observed(m.Process(), ram); err != nil {
		t.Error(err)
	}
	if groups, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs")); err != nil ||
		!strings.Contains(string(groups), strconv.Itoa(pid)) {
		t.Errorf("it is not in its cgroup: %q, %v", groups, err)
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !hasLandlock() {
		t.Fatal("the kernel has no landlock: not shown")
	}
	outside := t.TempDir()
	if err := m.api.snapshot(t.Context(), outside); err == nil {
		t.Error("it writes outside of the VM's directory")
	} else if !isRefusal(err) {
		t.Error(err)
	}
	if files, _ := os.ReadDir(outside); len(files) > 0 {
		t.Errorf("it left %v", files)
	}
	state, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if err := m.SaveState(t.Context(), state); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Where kernel and layer are for root alone, and a disk is a device, the VMM is no less confined,
// and opens them.
func TestConfinedPrivateFiles(t *testing.T) {
	env, dir := realEnv(t), t.TempDir()
	closed := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
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
	kernel, err := os.ReadFile(env.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	env.Kernel = closed("kernel", kernel)
	loop, err := vmmtest.Loop(closed("image", make([]byte, 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loop.Close() })
	m := startReal(t, env, func(c *vmm.Config) {
		c.Disks = []vmm.Disk{
			{ID: "layer", Serial: "layer", Slot: FirstDiskSlot, ReadOnly: true,
				File: open(closed("layer", make([]byte, 1<<20)))},
			{ID: "rw", Serial: "rw", Slot: FirstDiskSlot + 1, File: loop},
		}
	})
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := m.Process().PID
	if err := vmmtest.Confined(pid, env.User, func(thread string) bool {
		return vmmtest.ButTheFirst(pid, thread)
	}); err != nil {
		t.Error(err)
	}
}
