//go:build integration

package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// TestReboot starts a host again. A VM that slept is asleep and wakes. Of a VM that ran nothing
// is left and it can be run anew. Nothing runs by itself.
func TestReboot(t *testing.T) {
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	n := h.Node(0)
	for _, id := range []string{"slept", "ran"} {
		n.Ctr(t, "run", "-d", "--cni", "--runtime", runtimeName, images.Busybox, id, "sh", "-c",
			"echo "+id+" >/dev/shm/mark; sleep 100000")
	}
	n.Godwit(t, "hibernate", "slept")
	reboot(t, n)
	if out := n.Ctr(t, "task", "ls", "-q"); out != "" {
		t.Errorf("tasks after the start of the host: %s", out)
	}
	err := harness.Poll(t.Context(), time.Minute, func(context.Context) error {
		left, err := filepath.Glob(filepath.Join(n.Dir, "lib", "vms", "*", "*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left of the VM that ran: %v", left)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = harness.Poll(t.Context(), time.Minute, func(context.Context) error { // the maker of a template ends
		if pids := processes(t, n); len(pids) > 2 { // both daemons
			return fmt.Errorf("processes %v run", pids)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	n.Godwit(t, "wake", "slept")
	if out := n.Ctr(t, "task", "exec", "--exec-id", "mark", "slept", "cat", "/dev/shm/mark"); out != "slept\n" {
		t.Errorf("the VM that slept has %q in its memory", out)
	}
	n.Ctr(t, "container", "rm", "ran")
	if out := n.Ctr(t, "run", "--rm", "--runtime", runtimeName, images.Busybox, "ran", "sh", "-c",
		"cat /dev/shm/mark || echo new"); out != "new\n" {
		t.Errorf("the VM that was run anew says %q", out)
	}
}

// reboot kills whatever runs on the node, empties what lies in memory, and starts the
// daemons.
func reboot(t *testing.T, n *harness.Node) {
	t.Helper()
	for _, daemon := range []*harness.Process{n.Godwitd, n.Containerd} {
		if err := daemon.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range processes(t, n) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	script := "while read _ _ _ _ at _; do case $at in " + n.Dir +
		"/*) echo $at;; esac; done </proc/self/mountinfo | sort -r | while read at; do umount -l $at; done; " +
		"cd " + n.Dir + " && rm -rf run state ram s c.sock c.sock.ttrpc && rm -rf /run/netns /run/cni /var/lib/cni && " +
		"mkdir ram"
	if _, err := n.Run(t.Context(), "sh", "-c", script); err != nil {
		t.Fatal(err)
	}
	if err := n.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// processes of the node, but its first one, by the pids of the host.
func processes(t *testing.T, n *harness.Node) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if in, below := n.Within(pid); (in || below) && pid != n.PID() && !strings.Contains(string(stat), ") Z ") {
			pids = append(pids, pid)
		}
	}
	return pids
}
