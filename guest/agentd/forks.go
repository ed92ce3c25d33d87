package agentd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"godwit.dev/godwit/guest/stage"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// forkWait is how long an exec waits for the one before it at the fork server. Then it gets a stage of its own.
const forkWait = 250 * time.Millisecond

// forks is the fork server of a guest. It lives from the first exec on.
//
// A process that it starts shares its memory until exec, and its container sees the process then. So there is no
// server once a process has begun that may trace others.
type forks struct {
	turn   chan struct{} // has a value while no exec uses the server
	server atomic.Pointer[forkServer]
	stuck  atomic.Bool // an exec has waited in vain for the one that uses the server
	traced atomic.Bool // there is a process that may trace others
}

// forkServer is a process that serves.
type forkServer struct {
	one   *spawned
	pipe  *stage.ForkPipe
	ended chan struct{}
}

func newForks() *forks {
	f := &forks{turn: make(chan struct{}, 1)}
	f.turn <- struct{}{}
	return f
}

// take waits until no other exec uses the server, for a while.
func (f *forks) take(ctx context.Context) bool {
	wait := forkWait
	if f.stuck.Load() {
		wait = 0
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-f.turn:
		return true
	case <-ctx.Done():
	case <-timer.C:
		f.stuck.Store(true)
	}
	return false
}

func (f *forks) give() {
	f.stuck.Store(false)
	f.turn <- struct{}{}
}

// mayTrace reports whether a process can have CAP_SYS_PTRACE, also from the file of a program.
func mayTrace(spec *specs.Process) bool {
	c := spec.Capabilities
	if c == nil {
		return true
	}
	return slices.ContainsFunc([][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient},
		func(set []string) bool { return slices.Contains(set, "CAP_SYS_PTRACE") })
}

// admit is called before a process of a container begins. It ends the server for good if the process may trace.
func (s *Service) admit(ctx context.Context, spec *specs.Process) {
	if !mayTrace(spec) || s.forks.traced.Swap(true) {
		return
	}
	if s.forks.take(ctx) { // after the exec that uses the server
		defer s.forks.give()
	}
	if srv := s.forks.server.Swap(nil); srv != nil {
		s.endForks(srv)
	}
}

// forkServer answers the server, which it starts if there is none. The caller has the turn.
func (s *Service) forkServer() (*forkServer, error) {
	if srv := s.forks.server.Load(); srv != nil {
		return srv, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket of the fork server: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "forks")
	defer theirs.Close()
	srv := &forkServer{ended: make(chan struct{})}
	if srv.pipe, err = stage.NewForkPipe(os.NewFile(uintptr(fds[0]), "forks")); err != nil {
		return nil, err
	}
	srv.one, err = s.children.spawn(stage.ForkServer, theirs, 0, nil, func(uint32, time.Time) { close(srv.ended) })
	if err != nil {
		srv.pipe.Close()
		return nil, err
	}
	s.forks.server.Store(srv)
	return srv, nil
}

// endForks ends a server.
func (s *Service) endForks(srv *forkServer) {
	s.forks.server.CompareAndSwap(srv, nil)
	_ = s.children.signal(srv.one, unix.SIGKILL)
	<-srv.ended
	srv.pipe.Close()
}
