//go:build integration

package badinput

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// chatter writes numbered lines of half a KiB for as long as it runs.
const chatter = `pad=$(busybox printf '%0500d' 0); i=0; while :; do echo "line $i $pad"; i=$((i+1)); done`

// A woken VM that talks without end fills no disk: its log is its owner's alone, is bounded and
// rotates, and who attached hears every line over the rotations. A VM whose output went nowhere
// before it slept has no log after the wake.
func TestOutputOfWokenVMs(t *testing.T) {
	h := harness.New(t, harness.Options{
		Nodes: 1, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(*harness.Node) string { return "[logs]\nmax_bytes = \"1MiB\"\nfiles = 2\n" },
	})
	n := h.Node(0)
	log := func(id string) string { return filepath.Join(h.Dir, "log", n.Name+"-default-"+id+".log") }
	n.Ctr(t, "run", "-d", "--runtime", runtimeName, images.Busybox, "talker", "/bin/busybox", "sh", "-c", chatter)
	n.Ctr(t, "run", "-d", "--null-io", "--runtime", runtimeName, images.Busybox, "silent", "/bin/busybox", "sh",
		"-c", chatter)
	for _, id := range []string{"talker", "silent"} {
		n.Godwit(t, "hibernate", id)
		n.Godwit(t, "wake", "--on", n.Name, id)
	}

	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	client := n.Command(ctx, "ctr", n.CtrArgs("task", "attach", "talker")...)
	out, err := client.StdoutPipe()
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	// Of the first line that it hears it may have missed the beginning.
	lines, next, heard := bufio.NewScanner(out), -1, 0
	for lines.Scan() && heard < 5<<20 {
		var i int
		if _, err := fmt.Sscanf(lines.Text(), "line %d ", &i); err != nil && next >= 0 {
			t.Fatalf("after line %d: %q", next-1, lines.Text())
		} else if err == nil && next >= 0 && i != next {
			t.Fatalf("line %d comes after line %d", i, next-1)
		} else if err == nil {
			next = i + 1
		}
		heard += len(lines.Bytes())
	}
	cancel()
	_ = client.Wait()
	if heard < 5<<20 {
		t.Errorf("who attached heard %d bytes: %v", heard, lines.Err())
	}
	n.Ctr(t, "task", "pause", "talker")
	files, err := filepath.Glob(log("talker") + "*")
	if err != nil || len(files) == 0 || len(files) > 2 { // the pause may come between the end of one and the next line
		t.Errorf("logs %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 || info.Size() > 1<<20 {
			t.Errorf("%s: %v", f, info)
		}
	}
	if _, err := os.Stat(log("silent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the output that went nowhere: %v", err)
	}
	n.Ctr(t, "task", "resume", "talker")
	for _, id := range []string{"talker", "silent"} {
		n.Ctr(t, "task", "rm", "--force", id)
		n.Ctr(t, "container", "rm", id)
		n.Godwit(t, "rm", id)
	}
}
