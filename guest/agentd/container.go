package agentd

import (
	"errors"
	"fmt"
	"os"
	"time"

	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// namespaces of the container's init.
const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// child is a stage that has been spawned and not yet become its process.
type child struct {
	pid  int
	pipe *stage.Pipe
}

// spawnChild starts a stage. What it ends with goes to ended.
func (c *children) spawnChild(kind string, clone uintptr, joinPID int, ended func(uint32, time.Time)) (*child, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make stage socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "stage")
	defer theirs.Close()
	pipe, err := stage.NewPipe(os.NewFile(uintptr(fds[0]), "stage"))
	if err != nil {
		return nil, err
	}
	pid, err := c.spawn(kind, theirs, clone, joinPID, ended)
	if err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	return &child{pid: pid, pipe: pipe}, nil
}

// makeContainer starts the container's init up to where it waits for its process.
func (s *Service) makeContainer(box *stage.Container) (*child, error) {
	p := newProcess("", nil, s.opts.Poke)
	var pid int
	ch, err := s.children.spawnChild(stage.ArgInit, namespaces, 0, func(status uint32, at time.Time) {
		s.ended(p, status, at)
	})
	if err != nil {
		return nil, err
	}
	pid = ch.pid
	p.pid = pid
	fail := func(err error) (*child, error) {
		_ = s.children.signal(pid, unix.SIGKILL)
		<-p.done
		return nil, errors.Join(err, ch.pipe.Close())
	}
	if err := s.cgroup.join(pid); err != nil {
		return fail(err)
	}
	if err := ch.pipe.SendContainer(box); err != nil {
		return fail(err)
	}
	event, err := ch.pipe.Next()
	if err != nil {
		return fail(err)
	}
	if event != stage.Ready {
		return fail(fmt.Errorf("make container: its init has ended: %w", errdefs.ErrUnavailable))
	}
	s.init = p
	return ch, nil
}

// ended is called by children for every process of the container, with children
// locked.
func (s *Service) ended(p *process, status uint32, at time.Time) {
	p.ended(status, at, s.cgroup.oomKills())
}
