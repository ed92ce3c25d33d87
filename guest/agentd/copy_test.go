package agentd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// aContainer is one whose root is a directory of the test, and whose init runs. Its root is the test's own: with a path
// inside, the files below are those of the machine.
func aContainer(t *testing.T) (*Service, *container, func(name string) string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	cmd := exec.Command("sleep", "1000")

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s := barring()
	s.opts.Log = t.Logf
	c := newContainer("c1", "", dir)
	c.order, c.root.path = &order{setup: &agentv1.SetupRequest{}}, dir
	one := &spawned{pid: cmd.Process.Pid}
	s.children.runs[one.pid] = one
	c.init = newProcess("c1", c, nil, func() {})
	c.init.spawned, c.init.pid = one, one.pid
	s.containers["c1"] = c
	return s, c, func(name string) string { return filepath.Join(dir, name) }
}

// A Copy into a container that keeps it waiting ends with its call. What comes after it waits no longer than its own.
func TestCopyGivesUp(t *testing.T) {
	s, c, at := aContainer(t)
	f, err := os.Create(at("leased"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	ask := func(call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- call(ctx) }()
		select {
		case err := <-failed:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("the call does not end")
			return nil
		}
	}
	err = ask(func(ctx context.Context) error {
		_, err := s.Copy(ctx, &agentv1.CopyRequest{Container: "c1", Files: []*agentv1.File{
			{Path: at("leased"), Mode: unix.S_IFREG | 0o644}, {Path: at("next"), Mode: unix.S_IFREG | 0o644}}})
		return err
	})
	if err == nil {
		t.Error("the file was written")
	}
	if err := c.turn.Take(t.Context()); err != nil { // as a call that hangs in the container has it
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"copy": func(ctx context.Context) error {
			_, err := s.Copy(ctx, &agentv1.CopyRequest{Container: "c1"})
			return err
		},
		"read back": func(ctx context.Context) error {
			_, err := s.ReadBack(ctx, &agentv1.ReadBackRequest{Container: "c1"})
			return err
		},
	} {
		if err := ask(call); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A woken guest is told where it is file by file. What the container keeps from being written is said, and the rest is
// written: a wake does not fail over it.
func TestRenewGoesOn(t *testing.T) {
	s, c, at := aContainer(t)
	if err := os.Mkdir(at("hosts"), 0o755); err != nil {
		t.Fatal(err)
	}
	problems := s.renew(t.Context(), c, []*agentv1.File{
		{Path: at("hosts"), Mode: unix.S_IFREG | 0o644, Data: []byte("h")},
		{Path: at("resolv.conf"), Mode: unix.S_IFREG | 0o644, Data: []byte("r")},
	})
	if len(problems) != 1 || !strings.Contains(problems[0], "hosts") {
		t.Errorf("problems %q", problems)
	}
	if got, err := os.ReadFile(at("resolv.conf")); string(got) != "r" {
		t.Errorf("the next file holds %q, %v", got, err)
	}
}

// Once an init was reaped its pid may be another's: nothing is copied there.
func TestCopyAfterReap(t *testing.T) {
	s, c, at := aContainer(t)
	delete(s.children.runs, c.init.pid)
	_, err := s.Copy(t.Context(), &agentv1.CopyRequest{Container: "c1", Files: []*agentv1.File{
		{Path: at("x"), Mode: unix.S_IFREG | 0o644}}})
	if !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	if _, err := os.Lstat(at("x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of another process: %v", err)
	}
}
