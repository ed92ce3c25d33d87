package agentd

import (
	"errors"
	"fmt"
	"os"
	"time"

	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// namespaces of the one container of a guest, or of a pod; an init makes its own of mounts and
// cgroups later.
const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// alone is the birth of the init of the one container of a guest.
var alone = birth{kind: stage.ArgInit, clone: namespaces}

// pauseBirth is that of the process that holds a pod's namespaces. It has its own mounts from the clone on.
var pauseBirth = birth{kind: stage.ArgPause, clone: namespaces | unix.CLONE_NEWNS}

// birth says in which namespaces an init begins.
type birth struct {
	kind  string
	clone uintptr
	join  *spawned   // whose pid namespace it is born in; nil: its own, by clone
	enter []*os.File // namespaces that it enters
}

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

// spawnInit starts a stage for a container's init.
func (s *Service) spawnInit(c *container, b birth) (*spare, error) {
	p := newProcess(c.id, c, new(specs.Process), s.opts.Poke)
	ch, err := s.children.spawnChild(b.kind, b.clone, b.join, func(status uint32, at time.Time) {
		s.ended(p, status, at)
	})
	if err != nil {
		return nil, err
	}
	p.pid, p.spawned = ch.pid, ch.spawned
	sp := &spare{ch, p}
	if err := s.join(ch.spawned, c.cgroup); err != nil {
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

// takeSpare gives c the stage of a guest that was prepared: it saves the start of a program.
// There is one at most, in namespaces of its own.
func (s *Service) takeSpare(c *container, b birth) (*spare, error) {
	return s.take(&s.spare, c, b)
}

// takePause is takeSpare of the process that holds a pod's namespaces.
func (s *Service) takePause(c *container) (*spare, error) {
	return s.take(&s.sparePause, c, pauseBirth)
}

// take makes the stage that waits at from c's, or starts one. s.mu guards from.
func (s *Service) take(from **spare, c *container, b birth) (*spare, error) {
	s.mu.Lock()
	sp := *from
	*from = nil
	s.mu.Unlock()
	switch {
	case sp == nil:
		return s.spawnInit(c, b)
	case c.id == "": // for which it was made
		return sp, nil
	}
	sp.process.become(c)
	if err := s.join(sp.spawned, c.cgroup); err != nil {
		return nil, s.endStage(sp, err)
	}
	return sp, nil
}

// lead lets a stage come up to where it waits for its process.
func (s *Service) lead(sp *spare, box *stage.Container, enter []*os.File) error {
	if err := sp.pipe.SendContainer(box, enter...); err != nil {
		return s.endStage(sp, err)
	}
	event, err := sp.pipe.Next()
	if err != nil {
		return s.endStage(sp, err)
	}
	if event != stage.Ready {
		return s.endStage(sp, fmt.Errorf("make container: its init has ended: %w", errdefs.ErrUnavailable))
	}
	return nil
}

// ended is called by children for every process of a container, with children locked.
func (s *Service) ended(p *process, status uint32, at time.Time) {
	c := p.container()
	p.ended(status, at, c.cgroup.oomKills())
	if c.shares && p.id == c.id { // the kernel ends the others only where init is the first of its pid namespace
		_ = c.cgroup.signalAll(unix.SIGKILL)
	}
}
