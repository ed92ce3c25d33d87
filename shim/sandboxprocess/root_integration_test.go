//go:build integration

package sandboxprocess

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/proc"
)

// A user may take the root of a task's process for the container's, as `nerdctl cp` does. That
// user finds nothing of the host there but a word on where the files are, and can write nothing.
func TestRootShowsNothingOfTheHost(t *testing.T) {
	var held proc.ID
	if err := Start(t.Context(), os.Args[0], Namespace{New: true}, func(id proc.ID) error {
		held = id
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	root := fmt.Sprintf("/proc/%d/root", held.PID)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{noticeName, programName}, names); diff != "" {
		t.Errorf("the sandbox process's root (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile(root + "/" + noticeName); err != nil || !strings.Contains(string(text), "nerdctl exec") {
		t.Errorf("the notice says %q, %v", text, err)
	}
	if err := os.WriteFile(root+"/x", nil, 0o600); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("write to the sandbox process's root: %v", err)
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", held.PID)); err != nil || cwd != "/" {
		t.Errorf("the sandbox process's directory is %s, %v", cwd, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/cwd/etc", held.PID)); err == nil {
		t.Error("the sandbox process's directory is the host's root")
	}
}

// A sandbox process that is written down keeps its pid, arguments and namespace. It goes on
// after the signals that others send to a task, and holds less than any Go program.
func TestSandboxProcessIsSmall(t *testing.T) {
	var held proc.ID
	var before string
	note := func(id proc.ID) (err error) {
		held = id
		before, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", id.PID))
		return err
	}
	if err := Start(t.Context(), os.Args[0], Namespace{New: true}, note); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	execs := func() bool { // at this moment: it has no arguments then
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", held.PID))
		return err == nil && len(cmdline) == 0
	}
	settled := func() bool { return !execs() && pss(t, held.PID) <= mostKiB && !execs() }
	for end := time.Now().Add(time.Minute); !settled(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the sandbox process does not become smaller than %d KiB", mostKiB)
		}
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGTSTP} {
		if err := unix.Kill(held.PID, sig); err != nil {
			t.Error(err)
		}
	}
	if alive, err := held.Alive(); !alive || err != nil {
		t.Errorf("the sandbox process lives: %t, %v", alive, err)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", held.PID))
	if want := os.Args[0] + "\x00" + Subcommand + "\x00"; err != nil || string(cmdline) != want {
		t.Errorf("the sandbox process's arguments are %q, want %q, %v", cmdline, want, err)
	}
	if after, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", held.PID)); err != nil || after != before {
		t.Errorf("the sandbox process's namespace is %s, was %s, %v", after, before, err)
	}
}
