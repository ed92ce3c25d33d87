//go:build integration

package ctr

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// shareMiB is how much goes through stdout past a slow reader; GODWIT_STDIO_MIB=1024 is the
// full measure.
func shareMiB(t *testing.T) int {
	t.Helper()
	text := os.Getenv("GODWIT_STDIO_MIB")
	if text == "" {
		return bulk >> 20
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < bulk>>20 {
		t.Fatalf("GODWIT_STDIO_MIB=%s: not a number from %d on", text, bulk>>20)
	}
	return n
}

// Both streams of an exec go into one file, whole. Each has an order of its own: no runtime promises where in stdout a
// line of stderr comes.
func testFileURI(t *testing.T, n *harness.Node) {
	path := filepath.Join(t.TempDir(), "sub", "log")
	n.Ctr(t, execArgs("vm", "filed", "head -c 8388608 /data; echo end >&2", "--log-uri", "file://"+path)...)
	want := strings.Fields(n.Ctr(t, execArgs("vm", "filesum", "head -c 8388608 /data | sha256sum")...))[0]
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		data, err := os.ReadFile(path)
		if err == nil && !holdsBoth(data, want, []byte("end\n")) {
			err = fmt.Errorf("%d bytes, not those of sha256 %s and one line", len(data), want)
		}
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// holdsBoth reports whether data is line somewhere in bytes of that SHA-256.
func holdsBoth(data []byte, want string, line []byte) bool {
	for at := 0; ; at++ {
		k := bytes.Index(data[at:], line)
		if k < 0 {
			return false
		}
		at += k
		digest := sha256.New()
		digest.Write(data[:at])
		digest.Write(data[at+len(line):])
		if fmt.Sprintf("%x", digest.Sum(nil)) == want {
			return true
		}
	}
}

// A logging program reads both streams until they end.
func testBinaryURI(t *testing.T, n *harness.Node) {
	dir := t.TempDir()
	logger := filepath.Join(dir, "logger")
	script := "#!/bin/sh\nexec 5>&-\ncat <&3 >" + dir + "/out &\ncat <&4 >" + dir + "/err\nwait\ntouch " + dir + "/ended\n"
	if err := os.WriteFile(logger, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n.Ctr(t, execArgs("vm", "logged", "head -c 8388608 /data; echo end >&2", "--log-uri", "binary://"+logger)...)
	want := n.Ctr(t, execArgs("vm", "logsum", "head -c 8388608 /data | sha256sum")...)
	eventuallySum(t, filepath.Join(dir, "out"), strings.Fields(want)[0])
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		_, err := os.Stat(filepath.Join(dir, "ended"))
		return err
	})
	if got, read := os.ReadFile(filepath.Join(dir, "err")); err != nil || read != nil || string(got) != "end\n" {
		t.Errorf("stderr %q: %v %v", got, err, read)
	}
}

// eventuallySum waits until a file has that SHA-256: its writer may be late.
func eventuallySum(t *testing.T, path, want string) {
	t.Helper()
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		data, err := os.ReadFile(path)
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); err == nil && got != want {
			err = fmt.Errorf("%d bytes of sha256 %s, want %s", len(data), got, want)
		}
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// A reader that is killed takes nothing along but what it has read: the process goes on,
// and the next reader of the fifo finds the rest without a gap.
func testVanish(t *testing.T, n *harness.Node) {
	dir := t.TempDir()
	args := execArgs("vm", "vanish", "seq 1 200000; echo end", "--fifo-dir", dir)
	cmd := n.Command(t.Context(), "ctr", n.CtrArgs(args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "vanish-stdout"))
	if err != nil || len(found) != 1 {
		t.Fatalf("fifos %v: %v", found, err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	fd, err := unix.Open(found[0], unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fifo := os.NewFile(uintptr(fd), found[0])
	defer fifo.Close()
	consecutive(t, fifo)
}

// consecutive reads numbered lines, from anywhere in one, to "end".
func consecutive(t *testing.T, r io.Reader) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Scan() // a part of one
	lines.Scan()
	last, err := strconv.Atoi(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	for lines.Scan() && lines.Text() != "end" {
		next, err := strconv.Atoi(lines.Text())
		if err != nil || next != last+1 {
			t.Fatalf("%q after %d", lines.Text(), last)
		}
		last = next
	}
	if last != 200000 || lines.Err() != nil {
		t.Fatalf("the output ends after %d: %v", last, lines.Err())
	}
}

// available is what the guest could still give to processes, in bytes.
func available(t *testing.T, n *harness.Node, id string) int64 {
	t.Helper()
	out := n.Ctr(t, execArgs("vm", id, "grep MemAvailable /proc/meminfo")...)
	kib, err := strconv.ParseInt(strings.Fields(out)[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// testStdin: every byte up to the end, and the end right after it.
func testStdin(t *testing.T, n *harness.Node) {
	for _, size := range []int{1, 65536, 65537, 3<<20 + 1} {
		data := bytes.Repeat([]byte{'x'}, size)
		got := ctr(t, n, bytes.NewReader(data), execArgs("vm", fmt.Sprint("stdin", size), "wc -c; echo over")...)
		got.want(t, result{fmt.Sprintf("%d\nover\n", size), "", 0})
	}
}

// An empty stdin ends, too. It ends after the start: ctr says of a stdin that ends before it has made the exec nothing
// to any runtime.
func testEmptyStdin(t *testing.T, n *harness.Node) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	events := watchEvents(t, n)
	c := start(t, n, r, execArgs("vm", "nothing", "wc -c; echo over")...)
	err = harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		for _, e := range eventsOf(t, events, "vm") {
			if e.topic == "/tasks/exec-started" && e.process() == "nothing" {
				return nil
			}
		}
		return errors.New(events.stdout.String())
	})
	if err != nil {
		t.Fatalf("no start: %v", err)
	}
	w.Close()
	c.wait(t).want(t, result{"0\nover\n", "", 0})
}
