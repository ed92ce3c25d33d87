package agentd

import (
	"context"
	"errors"
	"fmt"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/api/guesttool"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// errNotForked says that the fork server has started nothing: a stage does it, or says why not.
var errNotForked = errors.New("not forked")

// fork starts the process of an exec by the fork server.
func (s *Service) fork(ctx context.Context, p, first *process, r *agentv1.StartRequest) error {
	if !stage.Forkable(p.spec) || p.spec.Args[0] == guesttool.Command || !s.forks.take(ctx) {
		return errNotForked
	}
	defer s.forks.give()
	if s.forks.traced.Load() {
		return errNotForked
	}
	srv, err := s.forkServer()
	if err != nil {
		return errNotForked
	}
	st, err := openStreams(r)
	if err != nil {
		return err
	}
	defer st.closeChild()
	if err := s.forkAt(srv, p, first, st); err != nil {
		st.closeOurs()
		return err
	}
	p.connect(st)
	return nil
}

// forkAt asks the server. Where the answer is lost, the process may run: it is ended with the server.
func (s *Service) forkAt(srv *forkServer, p, first *process, st *streams) error {
	c := p.container()
	group, err := unix.Open(string(c.cgroup), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errNotForked
	}
	defer unix.Close(group)
	init, err := s.children.pidfd(first.spawned)
	if err != nil {
		return errNotForked
	}
	defer unix.Close(init)
	done, err := s.killable(p, srv.one)
	if err != nil {
		return err
	}
	defer done()
	p.mu.Lock()
	p.kills = c.cgroup.oomKills()
	p.mu.Unlock()
	s.children.expect(1)
	defer s.children.expect(-1)
	proc := &stage.Process{Spec: p.spec, Personality: c.order.setup.Personality, Seccomp: c.filter,
		User: c.root.users.user()}
	err = srv.pipe.Ask(proc, c.root.users.with(st.childFDs()), group, init)
	if errdefs.IsResourceExhausted(err) {
		return errNotForked
	}
	if err != nil {
		s.endForks(srv)
		return errNotForked
	}
	reply, pidfd, err := srv.pipe.Reply()
	if err != nil {
		s.endForks(srv)
		return errors.Join(fmt.Errorf("start process: %w: %w", err, errdefs.ErrUnavailable), s.children.endStrays())
	}
	if reply.Pid == 0 {
		return errNotForked
	}
	defer unix.Close(pidfd)
	one := s.children.adopt(reply.Pid, pidfd, func(status uint32, at time.Time) { s.ended(p, status, at) })
	p.pid, p.spawned = one.pid, one
	return nil
}
