//go:build integration

package process_test

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// hostInit is process 1 of a host whose root is its initramfs.
const hostInit = `#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
export TMPDIR=/tmp
/process.test -test.v -test.run '^(TestSealKeeps|TestSealsAnyRoot|TestNoRights)$' && echo all well
poweroff -f
`

// The root of a host that runs from its initramfs is the root of all mounts and cannot be changed. There a process is
// confined and sealed as on any other.
func TestInitramfsHost(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	run := func(in, name string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		return out
	}
	run(".", "go", "test", "-c", "-o", filepath.Join(root, "process.test"), ".")
	for _, d := range []string{"bin", "dev", "proc", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"bin/busybox": busybox, "init": []byte(hostInit)} {
		if err := os.WriteFile(filepath.Join(root, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	initrd := filepath.Join(dir, "initrd")
	run(root, "/bin/busybox", "sh", "-c", "find . | /bin/busybox cpio -o -H newc >"+initrd)
	kernel := cmp.Or(os.Getenv("GODWIT_GUEST_KERNEL"), filepath.Join("..", "..", "bin", "guest", "vmlinuz"))
	out := run(".", "qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-nodefaults", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1")
	if !bytes.Contains(out, []byte("all well")) || bytes.Contains(out, []byte("SKIP")) {
		t.Errorf("it says:\n%s", out)
	}
}
