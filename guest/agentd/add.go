package agentd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// diskWait is how long a disk or NIC that was plugged in may take to be there.
	diskWait = 20 * time.Second
	// endWait is how long the kernel may take to end processes and to let go of disks.
	endWait = 30 * time.Second
)

// order is what a container is made of.
type order struct {
	setup   *agentv1.SetupRequest
	content []byte // of the whole request: equal requests have equal content
	pid     string // pid namespace
	volumes []*agentv1.VolumeMount
	devices []*agentv1.Device
	// openDevices: it may open any block device of the guest.
	openDevices bool
}

// disks that the container needs.
func (o *order) disks() []*agentv1.Disk {
	all := append(slices.Clone(o.setup.Layers), deviceDisks(o.devices)...)
	if o.setup.Writable != nil {
		all = append(all, o.setup.Writable)
	}
	return all
}

// AddContainer implements agentv1.AgentService.
func (s *Service) AddContainer(ctx context.Context, r *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse,
	error) {
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	if err := checkID("container", r.Container); err != nil {
		return nil, err
	}
	if r.Setup == nil {
		return nil, fmt.Errorf("add container %s: setup is missing: %w", r.Container, errdefs.ErrInvalidArgument)
	}
	o := &order{setup: r.Setup, content: r.AppendTo(nil), pid: r.Pid, volumes: r.Volumes,
		devices: r.Devices, openDevices: r.OpenDevices}
	c, err := s.enter(ctx, r.Container, o)
	if err != nil {
		return nil, err
	}
	defer c.turn.Give()
	if err := s.addLocked(ctx, c, o); err != nil {
		return nil, fmt.Errorf("add container %s: %w", c.id, err)
	}
	return &agentv1.AddContainerResponse{}, nil
}

// add is addLocked for the one container of a guest.
func (s *Service) add(ctx context.Context, c *container, o *order) error {
	if err := c.turn.Take(ctx); err != nil {
		return err
	}
	defer c.turn.Give()
	return s.addLocked(ctx, c, o)
}

// addLocked makes a container, or leaves nothing of it.
func (s *Service) addLocked(ctx context.Context, c *container, o *order) error {
	if c.order != nil {
		if bytes.Equal(c.order.content, o.content) {
			return nil
		}
		return fmt.Errorf("set up container: it has been set up otherwise: %w", errdefs.ErrFailedPrecondition)
	}
	if c.left != nil {
		if err := s.unmake(ctx, c, c.left); err != nil {
			return err
		}
		c.left = nil
	}
	err := s.make(ctx, c, o)
	if err == nil {
		c.order = o
		return nil
	}
	// Who has asked may have gone, and what is left of the container goes all the same.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	c.left = o
	if e := s.unmake(undo, c, o); e != nil {
		return errors.Join(err, e)
	}
	c.left = nil
	s.drop(c)
	return err
}

// make does the steps, each of which may fail.
func (s *Service) make(ctx context.Context, c *container, o *order) error {
	if _, err := parseResources(o.setup.Resources); err != nil {
		return err
	}
	if err := s.opts.Ready(); err != nil {
		return err
	}
	if c.id == "" && !s.held { // else it is
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	find, scratch := s.diskFinder(ctx), ""
	if c.id != "" {
		if err := s.makeGroup(c); err != nil {
			return err
		}
		scratch = s.scratch(c.id)
		find = func(serial string) (string, error) { return awaitDisk(ctx, serial) }
	}
	if err := s.reached("mount"); err != nil {
		return err
	}
	var err error
	if c.root.users, err = s.usersOf(o.setup.User); err != nil {
		return err
	}
	if err := c.root.mount(o.setup, scratch, find); err != nil {
		return err
	}
	if f := o.setup.Seccomp; f != nil {
		c.filter = &stage.Seccomp{Program: f.Program, Flags: f.Flags}
	}
	if err := s.reached("init"); err != nil {
		return err
	}
	if err := s.makeInit(ctx, c, o); err != nil {
		return err
	}
	if err := s.reached("files"); err != nil {
		return err
	}
	if err := s.copyFiles(ctx, c, o.setup.Files); err != nil {
		return err
	}
	return s.reached("end")
}

// makeGroup makes the cgroup of a container of a pod.
func (s *Service) makeGroup(c *container) error {
	if err := s.reached("cgroup"); err != nil {
		return err
	}
	_, err := makeCgroup(s.pod.Load().cgroup, c.id)
	return err
}

// makeInit starts the stage of the container's init, which makes the container round itself.
func (s *Service) makeInit(ctx context.Context, c *container, o *order) error {
	box := describe(c.root, o.setup)
	b := alone
	if c.id != "" {
		var err error
		box.Hostname = ""
		if box.Mounts, err = s.withVolumes(box.Mounts, o.volumes, c.root.users); err != nil {
			return err
		}
		if box.Devices, err = findDevices(ctx, c, o); err != nil {
			return err
		}
		if b, err = s.birthOf(o.pid); err != nil {
			return err
		}
	}
	begin := s.spawnInit
	if c.shares = b.join != nil; !c.shares {
		begin = s.takeSpare
	}
	sp, err := begin(c, b)
	if err != nil {
		return err
	}
	enter := b.enter
	if u := c.root.users; u != nil {
		enter = append(slices.Clone(enter), u.file)
	}
	if err := s.lead(sp, box, enter); err != nil {
		return err
	}
	c.init, c.waiting = sp.process, sp.child
	return nil
}

// birthOf says how an init of a pod begins whose pid namespace is called so.
func (s *Service) birthOf(pid string) (birth, error) {
	p := s.pod.Load()
	b := birth{kind: stage.ArgInit, enter: p.shared}
	target := p.pause
	switch pid {
	case "":
		b.clone = unix.CLONE_NEWPID
	case podID:
		b.join = p.pause.spawned
	default:
		if target = s.processOf(pid); target == nil {
			return b, fmt.Errorf("pid namespace of container %q: its init does not run: %w", pid, errdefs.ErrFailedPrecondition)
		}
		b.join = target.spawned
	}
	if p.pause.exited() || target.exited() {
		return b, fmt.Errorf("pid namespace %q: the process that holds it has ended: %w", pid, errdefs.ErrFailedPrecondition)
	}
	return b, nil
}

// processOf finds a container's init that was started.
func (s *Service) processOf(id string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[id]
}

// scratch is the directory of a container on the pod's disk.
func (s *Service) scratch(id string) string { return filepath.Join(s.pod.Load().dir, "containers", id) }
