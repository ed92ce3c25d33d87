//go:build integration

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// TestFullStateDir: on a file system without a free byte, no verb loses a VM or leaves a part of one. Each says which
// directory is full and what to do, and works once there is room.
func TestFullStateDir(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, State: "512m"})
	d := &day{t, h.Node(0), h}
	d.says("web\n", "run", "-d", "--name", "web", "-m", "64m", images.Busybox, "sh", "-c",
		"i=0; while :; do i=$((i+1)); echo $i >/dev/shm/i; sleep 0.2; done")
	before := d.counted()
	empty := d.fill()
	d.full(125, "run", "-d", "--name", "other", images.Busybox, "sleep", "1000")
	if out := d.n.Ctr(d, "containers", "ls", "-q"); out != "web\n" || d.active() != 1 {
		d.Errorf("containers %q, %d snapshots of containers", out, d.active())
	}
	d.full(8, "checkpoint", "web")
	if out := d.says("", "snapshot", "ls", "-q", "web"); out != "" {
		d.Errorf("snapshots: %s", out)
	}
	d.full(8, "hibernate", "web")
	after := d.counted()
	if after <= before {
		d.Errorf("it has counted to %d, and then to %d", before, after)
	}
	empty()
	d.says("sleeps as", "hibernate", "web")
	empty = d.fill()
	d.full(8, "wake", "web")
	d.says("asleep", "ps", "-a")
	if vmms, err := d.n.VMMs(); err != nil || len(vmms) != 0 {
		d.Errorf("VMMs are left: %v, %v", vmms, err)
	}
	empty()
	d.says("runs on", "wake", "web")
	if last := d.counted(); last <= after {
		d.Errorf("it had counted to %d, and after the wake to %d", after, last)
	}
	d.says("removed", "rm", "-f", "web")
	d.empty()
}

// counted is how far the VM web has counted.
func (d *day) counted() (n int) {
	d.Helper()
	if _, err := fmt.Sscan(d.says("", "exec", "web", "cat", "/dev/shm/i"), &n); err != nil {
		d.Fatal(err)
	}
	return n
}

// fill leaves no free byte in state_dir.
func (d *day) fill() (empty func()) {
	d.Helper()
	path := filepath.Join(d.n.StateDir(), "fill")
	f, err := os.Create(path)
	if err != nil {
		d.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = io.CopyN(f, zeros{}, 1<<16)
	}
	if !errors.Is(err, unix.ENOSPC) {
		d.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			d.Fatal(err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// full wants that a verb ends with a code, and says which directory is full and what to do.
func (d *day) full(code int, args ...string) {
	d.Helper()
	out, err := d.n.RunGodwit(d.Context(), args...)
	run, ok := errors.AsType[*harness.RunError](err)
	if !ok {
		d.Fatalf("godwit %s: %v (%s)", strings.Join(args, " "), err, out)
	}
	d.Logf("godwit %s: exit code %d: %s", strings.Join(args, " "), run.Code(), run.Stderr)
	state := filepath.Join(d.n.Dir, "lib")
	if run.Code() != code || !strings.Contains(run.Stderr, state) || !strings.Contains(run.Stderr, "make room") {
		d.Errorf("godwit %s: exit code %d, %s; want %d, %s and what to do", strings.Join(args, " "), run.Code(), run.Stderr,
			code, state)
	}
}
