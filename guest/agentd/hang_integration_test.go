//go:build integration

package agentd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// within fails the test if a call takes longer than its bound.
func within(t *testing.T, what string, bound time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- call(ctx) }()
	select {
	case err := <-failed:
		return err
	case <-time.After(bound + time.Minute):
		t.Fatalf("%s does not end", what)
		return nil
	}
}

// A container with a fifo at /etc/passwd starts execs all the same, by the fork server and by a stage.
func TestExecWithAFifoAsPasswd(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	passwd := filepath.Join(s.containers["c1"].root.path, "etc/passwd")
	if err := errors.Join(os.Remove(passwd), unix.Mkfifo(passwd, 0o644)); err != nil {
		t.Fatal(err)
	}
	for id, change := range map[string]func(*specs.Process){
		"forked": nil, "staged": func(p *specs.Process) { p.Capabilities = nil },
	} {
		r := request(t, id, "c1", program(change, "sh", "-c", "echo $HOME"))
		err := within(t, id, 20*time.Second, func(ctx context.Context) error { _, err := s.Start(ctx, r); return err })
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if got := ran(t, s.processes[id]); got != "/\n[end of 0]\n[end of 1]\n[status 0]" {
			t.Errorf("%s: %q", id, got)
		}
	}
}

// A Start that hangs in its container, here at a program with a lease, ends when it is given up or its container goes.
func TestHungStartEnds(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newContainerGuest(t)
	release := hold(t, s)
	defer release()
	for _, c := range []struct {
		id      string
		change  func(*specs.Process)
		removed bool
	}{
		{"forked", nil, false},
		{"staged", func(p *specs.Process) { p.Capabilities = nil }, false},
		{"removed", func(p *specs.Process) { p.Capabilities = nil }, true},
	} {
		r := request(t, c.id, "c1", program(func(p *specs.Process) {
			p.Args[0] = "/held/busybox"
			if c.change != nil {
				c.change(p)
			}
		}, "true"))
		started := make(chan error, 1)
		go func() { _, err := s.Start(context.Background(), r); started <- err }()
		until(t, "the start hangs", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.starting[c.id].kill != nil
		})
		err := within(t, "the end", 15*time.Second, func(ctx context.Context) error {
			if c.removed {
				_, err := s.RemoveContainer(ctx, &agentv1.RemoveContainerRequest{Container: "c1"})
				return err
			}
			_, err := s.Kill(ctx, never(c.id))
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", c.id, err)
		}
		<-started
	}
	if _, err := s.AddContainer(t.Context(), &agentv1.AddContainerRequest{Container: "c2",
		Setup: &agentv1.SetupRequest{}}); err != nil { // the guest is as good as before
		t.Error(err)
	}
	if _, err := s.RemoveContainer(t.Context(), &agentv1.RemoveContainerRequest{Container: "c2"}); err != nil {
		t.Error(err)
	}
	s.containers["c1"] = newContainer("c1", cgroup(t.TempDir()), t.TempDir()) // what the cleanup removes
}
