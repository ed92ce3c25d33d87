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

// namespaces of the container's init; it makes its own of mounts and cgroups later.
const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// child is a stage that has been spawned and not yet become its process.
type child struct {
	*spawned
	pipe *stage.Pipe
}

// spawnChild starts a stage. What it ends with goes to ended.
func (c *children) spawnChild(kind string, clone uintptr, join *spawned, ended func(uint32, time.Time)) (*child,
	error) {
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
	one, err := c.spawn(kind, theirs, clone, join, ended)
	if err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	return &child{spawned: one, pipe: pipe}, nil
}

// spare is a stage that waits for its container, and the process that it will be.
type spare struct {
	*child
	process *process
}

// spawnInit starts a stage for the container's init.
func (s *Service) spawnInit() (*spare, error) {
	p := newProcess("", nil, s.opts.Poke)
	ch, err := s.children.spawnChild(stage.ArgInit, namespaces, nil, func(status uint32, at time.Time) {
		s.ended(p, status, at)
	})
	if err != nil {
		return nil, err
	}
	p.pid, p.spawned = ch.pid, ch.spawned
	sp := &spare{ch, p}
	if err := s.join(ch.spawned); err != nil {
		return nil, s.endStage(sp, err)
	}
	return sp, nil
}

// endStage ends a stage that has no container.
func (s *Service) endStage(sp *spare, err error) error {
	_ = s.children.signal(sp.spawned, unix.SIGKILL)
	<-sp.process.done
	return errors.Join(err, sp.pipe.Close())
}

// makeContainer lets the container's init come up to where it waits for its process.
func (s *Service) makeContainer(box *stage.Container) (*child, error) {
	sp := s.spare // of a guest that was prepared: it saves the start of a program
	s.spare = nil
	if sp == nil {
		var err error
		if sp, err = s.spawnInit(); err != nil {
			return nil, err
		}
	}
	if err := sp.pipe.SendContainer(box); err != nil {
		return nil, s.endStage(sp, err)
	}
	event, err := sp.pipe.Next()
	if err != nil {
		return nil, s.endStage(sp, err)
	}
	if event != stage.Ready {
		return nil, s.endStage(sp, fmt.Errorf("make container: its init has ended: %w", errdefs.ErrUnavailable))
	}
	s.init = sp.process
	return sp.child, nil
}

// ended is called by children for every process of the container, with children
// locked.
func (s *Service) ended(p *process, status uint32, at time.Time) {
	p.ended(status, at, s.cgroup.oomKills())
}
