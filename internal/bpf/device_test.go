package bpf

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/loopdevice"
)

// group makes a cgroup v2, or skips.
func group(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top := t.TempDir()
	if err := unix.Mount("cgroup2", top, "cgroup2", 0, ""); err != nil {
		t.Skip("needs cgroup v2")
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	dir, err := os.MkdirTemp(top, "bpf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// loop makes a block device.
func loop(t *testing.T) (path string, d Device) {
	t.Helper()
	path = loopdevice.New(t, 1<<20)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return path, Device{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
}

// TestAllowBlockDevices: a process of the cgroup opens its device, and no other one.
func TestAllowBlockDevices(t *testing.T) {
	dir := group(t)
	own, device := loop(t)
	shown, readOnly := loop(t)
	other, _ := loop(t)
	readOnly.ReadOnly = true
	if err := AllowBlockDevices(dir, []Device{device, readOnly}); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(t.TempDir(), "node")
	for script, want := range map[string]bool{
		"true <" + own: true, "true <>" + own: true, "true >" + own: true,
		"true <" + shown: true, "true <>" + shown: false, "true >" + shown: false,
		"true <" + other: false, "true >" + other: false,
		"true <>/dev/null": true, "mknod " + node + " b 7 0": true,
	} {
		enter := "echo $$ >" + filepath.Join(dir, "cgroup.procs") + "; "
		out, err := exec.Command("sh", "-c", enter+script).CombinedOutput()
		if (err == nil) != want {
			t.Errorf("%s: %v, %s; want success: %v", script, err, out, want)
		}
	}
}
