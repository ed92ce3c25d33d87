//go:build integration

package ctr

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	bulk = 64 << 20 // bytes of output
	// shimMemory is more than a shim may use while what it holds is not read.
	shimMemory = 96 << 20
	// guestMemory is more than the guest may use for it.
	guestMemory = 24 << 20
)

// Output arrives whole, whichever end is slow and whichever ends first. Without --cni the guest has loopback only,
// which is said.
func TestStream(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true})
	n := h.Node(0)
	n.CheckClean(t)
	detached(t, n, images.Busybox, "vm", "sleep", "100000")
	t.Run("loopback", func(t *testing.T) { testLoopback(t, h, n) })
	t.Run("slow reader", func(t *testing.T) { testSlow(t, n) })
	t.Run("file URI", func(t *testing.T) { testFileURI(t, n) })
	t.Run("binary URI", func(t *testing.T) { testBinaryURI(t, n) })
	t.Run("reader vanishes", func(t *testing.T) { testVanish(t, n) })
	t.Run("stdin", func(t *testing.T) { testStdin(t, n) })
	t.Run("empty stdin", func(t *testing.T) { testEmptyStdin(t, n) })
	t.Run("exit with output in flight", func(t *testing.T) { testInFlight(t, n) })
	t.Run("grandchild holds stdout", func(t *testing.T) { testGrandchild(t, n) })
	t.Run("VM ends before a reader comes", func(t *testing.T) { testLate(t, n) })
	ctr(t, n, nil, "task", "delete", "--force", "vm")
	n.Ctr(t, "container", "rm", "vm")
}

func testLoopback(t *testing.T, h *harness.Harness, n *harness.Node) {
	got := ctr(t, n, nil, execArgs("vm", "links", "ls /sys/class/net; ping -c1 -W5 127.0.0.1 >/dev/null && echo up")...)
	got.want(t, result{"lo\nup\n", "", 0})
	if out := n.Godwit(t, "ps", "-o", "wide"); !strings.Contains(out, "loopback") {
		t.Errorf("godwit ps does not say it: %s", out)
	}
	if log, err := os.ReadFile(filepath.Join(h.Dir, "log", n.Name+"-containerd.log")); err != nil ||
		!bytes.Contains(log, []byte("loopback only")) {
		t.Errorf("the log does not say it: %v", err)
	}
}

// piped starts an exec whose output goes to a pipe that only the caller reads.
func piped(t *testing.T, n *harness.Node, id, text string) (*exec.Cmd, io.ReadCloser) {
	t.Helper()
	cmd := n.Command(t.Context(), "ctr", n.CtrArgs(execArgs("vm", id, text)...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// A reader that stops loses nothing and does not make the shim grow.
func testSlow(t *testing.T, n *harness.Node) {
	sum := n.Ctr(t, execArgs("vm", "make", fmt.Sprintf("dd if=/dev/urandom of=/data bs=1M count=%d 2>/dev/null; "+
		"sha256sum </data", bulk>>20))...)
	free := available(t, n, "before")
	passes := shareMiB(t) / (bulk >> 20)
	cmd, out := piped(t, n, "slow", fmt.Sprintf("for i in $(seq %d); do cat /data; done", passes))
	for pass := range passes {
		slowPass(t, n, out, strings.Fields(sum)[0])
		if now := available(t, n, fmt.Sprint("during", pass)); now < free-guestMemory {
			t.Errorf("the guest had %d MiB and has %d MiB, pass %d", free>>20, now>>20, pass)
		}
	}
	k, err := io.Copy(io.Discard, out)
	if err != nil || k != 0 {
		t.Errorf("%d more bytes, %v", k, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// slowPass reads the data once.
func slowPass(t *testing.T, n *harness.Node, out io.Reader, want string) {
	t.Helper()
	digest := sha256.New()
	var read int64
	for read < bulk {
		// Every few MiB the reader stops for as long as another command takes, in which the shim could take all that the
		// guest has.
		k, err := io.CopyN(digest, out, 8<<20)
		read += k
		if err != nil {
			t.Fatalf("after %d bytes: %v", read, err)
		}
		n.Ctr(t, "task", "metrics", "vm")
		if rss := shimRSS(t, n); rss > shimMemory {
			t.Errorf("the shim has %d MiB after %d MiB", rss>>20, read>>20)
		}
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != want {
		t.Errorf("sha256 %s, want %s", got, want)
	}
}

// What a process wrote before it ended arrives, also when the first reads come after.
func testInFlight(t *testing.T, n *harness.Node) {
	const size = 8 << 20
	sum := n.Ctr(t, execArgs("vm", "sum", fmt.Sprintf("head -c %d /data | sha256sum", size))...)
	cmd, out := piped(t, n, "flight", fmt.Sprintf("head -c %d /data; exit 9", size))
	// The exec has ended in the guest, or waits for a reader.
	n.Ctr(t, execArgs("vm", "between", "true")...)
	data, err := io.ReadAll(out)
	if err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("exec: %v, want exit code 9", err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(data)); len(data) != size || got != strings.Fields(sum)[0] {
		t.Errorf("%d bytes of sha256 %s, want %d of %s", len(data), got, size, sum)
	}
}

// What an exec has written and no client has read stays after the end of its VM, and so does how it ended. This is the
// end of the VM.
func testLate(t *testing.T, n *harness.Node) {
	const size = 900 << 10 // what a guest holds of a process that then ends
	sum := n.Ctr(t, execArgs("vm", "latesum", fmt.Sprintf("head -c %d /data | sha256sum", size))...)
	cmd, out := piped(t, n, "late", fmt.Sprintf("head -c %d /data; touch /tmp/written; exit 5", size))
	n.Ctr(t, execArgs("vm", "written", "for i in $(seq 600); do [ -e /tmp/written ] && exit; sleep 0.1; done; exit 1")...)
	n.Ctr(t, "task", "kill", "-s", "SIGKILL", "vm")
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		if list := n.Ctr(t, "task", "ls"); !strings.Contains(list, "STOPPED") {
			return errors.New(list)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(out)
	if err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("exec: %v, want exit code 5", err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(data)); len(data) != size || got != strings.Fields(sum)[0] {
		t.Errorf("%d bytes of sha256 %s, want %d of %s", len(data), got, size, sum)
	}
}

// A grandchild that holds stdout does not hold up the exit, and what it writes still
// arrives: ctr waits for it, as with any runtime.
func testGrandchild(t *testing.T, n *harness.Node) {
	events := watchEvents(t, n)
	c := start(t, n, nil, execArgs("vm", "parent", "(until [ -e /tmp/gate ]; do sleep 0.1; done; echo later) & echo "+
		"soon; exit 3")...)
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		for _, e := range eventsOf(t, events, "vm") {
			if e.topic == "/tasks/exit" && e.process() == "parent" && e.Status == 3 {
				return nil
			}
		}
		return errors.New(events.stdout.String())
	})
	if err != nil {
		t.Fatalf("no exit of the parent: %v", err)
	}
	n.Ctr(t, execArgs("vm", "open", "touch /tmp/gate")...)
	c.wait(t).want(t, result{"soon\nlater\n", "", 3})
}

// shimRSS is the resident memory of the node's one shim.
func shimRSS(t *testing.T, n *harness.Node) uint64 {
	t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.PID()))
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if ns, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || ns != own {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if !bytes.Contains(line, []byte("containerd-shim-godwit-v1\x00-namespace")) {
			continue
		}
		statm, err := os.ReadFile(filepath.Join(dir, "statm"))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.ParseUint(strings.Fields(string(statm))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return pages * uint64(os.Getpagesize())
	}
	t.Fatal("no shim runs")
	return 0
}
