package process

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// asker is a sealed process that opens what it is told to.
type asker struct {
	p    *Process
	asks *os.File
	says *bufio.Reader
}

func newAsker(t *testing.T, u User) *asker {
	t.Helper()
	in, asks, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { asks.Close() })
	says, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { says.Close() })
	in.Fd() // blocking: a shell reads from it
	files := &Files{}
	defer files.Close()
	for _, f := range []*os.File{in, out} {
		if _, err := files.Pass(f); err != nil {
			t.Fatal(err)
		}
	}
	// It reads a mode and a path, and says the first line of the file, or why it cannot.
	p, _ := confined(t, Launch{User: u, FDs: files.FDs()}, "", `while read mode path <&3; do
		line=
		case $mode in
		read) { read -r line <$path || [ "$line" ]; } 2>/dev/null && echo "got $line" >&4 || echo refused >&4 ;;
		write) { echo written >>$path; } 2>/dev/null && echo done >&4 || echo refused >&4 ;;
		esac
	done`)
	in.Close()
	out.Close()
	if err := p.Seal("/dev", "/proc", HotDir); err != nil {
		t.Fatal(err)
	}
	return &asker{p, asks, bufio.NewReader(says)}
}

func (a *asker) ask(t *testing.T, mode string, place int) string {
	t.Helper()
	if _, err := fmt.Fprintln(a.asks, mode, HotPath(place)); err != nil {
		t.Fatal(err)
	}
	line, err := a.says.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (a *asker) show(t *testing.T, u User, place int, file *os.File, write bool) {
	t.Helper()
	mount, err := u.Mount(file, write)
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	if err := a.p.Show(place, mount); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, name, text string, mode os.FileMode) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// A sealed process reads the files that it is shown, though they are for root alone. It writes only what it
// may write. It finds nothing once they are hidden.
func TestShow(t *testing.T) {
	needRoot(t)
	u := User{ID: user}
	a := newAsker(t, u)
	if got := a.ask(t, "read", 0); got != "refused" {
		t.Errorf("before: %q", got)
	}
	a.show(t, u, 0, create(t, "public", "one\n", 0o644), false)
	a.show(t, u, 15, create(t, "private", "two\n", 0o600), false)
	own := create(t, "own", "three\n", 0o600)
	a.show(t, u, 7, own, true)
	for place, want := range map[int]string{0: "got one", 15: "got two", 7: "got three"} {
		if got := a.ask(t, "read", place); got != want {
			t.Errorf("read %d: %q, want %q", place, got, want)
		}
	}
	for place, want := range map[int]string{0: "refused", 15: "refused", 7: "done"} {
		if got := a.ask(t, "write", place); got != want {
			t.Errorf("write %d: %q, want %q", place, got, want)
		}
	}
	if data, err := os.ReadFile(own.Name()); err != nil || string(data) != "three\nwritten\n" {
		t.Errorf("the file that it wrote to: %q, %v", data, err)
	}
	a.show(t, u, 0, create(t, "next", "four\n", 0o644), false)
	if got := a.ask(t, "read", 0); got != "got four" {
		t.Errorf("a second file at a place: %q", got)
	}
	for range 2 { // hiding what is hidden succeeds
		if err := a.p.Hide(0, 7, 15); err != nil {
			t.Fatal(err)
		}
	}
	for _, place := range []int{0, 7, 15} {
		if got := a.ask(t, "read", place); got != "refused" {
			t.Errorf("hidden %d: %q", place, got)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), HotDir) {
		t.Errorf("the host has a mount of it: %s, %v", mounts, err)
	}
}

// A disk that is a device is opened by a node of the user's own, for reading alone where that was asked for.
func TestShowDevice(t *testing.T) {
	needRoot(t)
	file := create(t, "disk", "device\n", 0o600)
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	device := loopOf(t, file.Name())
	u := User{ID: user}
	a := newAsker(t, u)
	a.show(t, u, 3, device, false)
	if got := a.ask(t, "read", 3); got != "got device" {
		t.Errorf("read: %q", got)
	}
	if got := a.ask(t, "write", 3); got != "refused" {
		t.Errorf("write: %q", got)
	}
}
