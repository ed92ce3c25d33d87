package agentd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// startedAfter leaves the processor to the container's first steps.
const startedAfter = time.Second

// Start implements agentv1.AgentService.
func (s *Service) Start(ctx context.Context, r *agentv1.StartRequest) (*agentv1.StartResponse, error) {
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	if s.pod.Load() != nil && r.Id == podID {
		return s.startPod()
	}
	c, err := s.owner(r.Id, r.Container)
	if err != nil {
		return nil, err
	}
	p, err := s.startOnce(ctx, r.Id, c, func() (*process, error) {
		spec, err := parseProcess(r.Process)
		if err != nil {
			return nil, err
		}
		if err := c.root.users.user().CheckProcess(spec); err != nil {
			return nil, err
		}
		p := newProcess(r.Id, c, spec, s.opts.Poke)
		s.mu.Lock()
		if size, ok := s.sizes[r.Id]; ok {
			p.size = &size
			delete(s.sizes, r.Id)
		}
		s.mu.Unlock()
		s.admit(ctx, spec)
		if r.Id == c.id {
			return s.startInit(ctx, c, p.spec, p.size, r)
		}
		return p, s.startExec(ctx, c, p, r)
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.StartResponse{Pid: uint32(p.pid)}, nil
}

// startOnce starts the process of an id unless it has been started, or another call is
// about to; then it waits for that one's result.
func (s *Service) startOnce(ctx context.Context, id string, c *container, start func() (*process, error)) (*process,
	error) {
	for {
		s.mu.Lock()
		p, busy := s.processes[id], s.starting[id].over
		var barred error
		if p == nil && busy == nil {
			if barred = s.mayStart(id, c); barred == nil {
				s.starting[id] = starting{box: c, over: make(chan struct{})}
			}
		}
		s.mu.Unlock()
		if p != nil || barred != nil {
			return p, barred
		}
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	var p *process
	var err error
	defer func() { // after a panic, too: who waits for this call goes on
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.starting[id].over)
		delete(s.starting, id)
		if p != nil && err == nil {
			s.processes[id] = p
		}
	}()
	if p, err = start(); err != nil {
		return nil, err
	}
	return p, nil
}

// startInit gives the container's init its process.
// It is tried once: who asks again, because the answer was lost, gets the same.
func (s *Service) startInit(ctx context.Context, c *container, spec *specs.Process, size *unix.Winsize,
	r *agentv1.StartRequest) (*process, error) {
	if err := c.turn.Take(ctx); err != nil {
		return nil, err
	}
	defer c.turn.Give()
	if c.refused != nil {
		return nil, c.refused
	}
	if c.waiting == nil {
		return nil, fmt.Errorf("start the container's init: no container is set up, or it was tried before: %w",
			errdefs.ErrFailedPrecondition)
	}
	p, ch := c.init, c.waiting
	c.waiting = nil // whatever happens, this child is used up
	p.spec = spec
	p.mu.Lock()
	p.size = size
	p.mu.Unlock()
	resources, err := parseResources(c.order.setup.Resources)
	if err != nil {
		c.refused = s.abandon(ch, p, err)
		return nil, c.refused
	}
	if c.refused = s.becomeProcess(ch, p, nil, r, func() error { return c.cgroup.apply(resources) }); c.refused != nil {
		return nil, c.refused
	}
	s.begin()
	return p, nil
}

// startExec starts one more process in the container.
func (s *Service) startExec(ctx context.Context, c *container, p *process, r *agentv1.StartRequest) error {
	first := s.processOf(c.id)
	if first == nil || first.exited() {
		return fmt.Errorf("start process %q: the container's init does not run: %w", p.id, errdefs.ErrFailedPrecondition)
	}
	if err := s.fork(ctx, p, first, r); !errors.Is(err, errNotForked) {
		return err
	}
	ch, err := s.children.spawnChild(stage.ArgExec, 0, first.spawned, func(status uint32, at time.Time) {
		s.ended(p, status, at)
	})
	if err != nil {
		if first.exited() {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
		}
		return err
	}
	p.pid, p.spawned = ch.pid, ch.spawned
	done, err := s.killable(p, ch.spawned)
	if err != nil {
		return s.abandon(ch, p, err)
	}
	defer done()
	init, err := s.children.pidfd(first.spawned)
	if err != nil {
		return s.abandon(ch, p, fmt.Errorf("join container: its init has ended: %w: %w", err, errdefs.ErrFailedPrecondition))
	}
	defer unix.Close(init)
	return s.becomeProcess(ch, p, []int{init}, r, func() error { return s.join(ch.spawned, c.cgroup) })
}

// becomeProcess turns a child into its process, or ends it. join is the pidfd of the init whose container it joins.
func (s *Service) becomeProcess(ch *child, p *process, join []int, r *agentv1.StartRequest,
	beforeExec func() error) error {
	c := p.container()
	p.mu.Lock()
	p.kills = c.cgroup.oomKills()
	p.mu.Unlock()
	if err := s.adjustOOM(ch.spawned, p.spec); err != nil {
		return s.abandon(ch, p, err)
	}
	var st *streams
	if !p.spec.Terminal {
		var err error
		if st, err = openStreams(r); err != nil {
			return s.abandon(ch, p, err)
		}
	}
	proc := &stage.Process{Spec: p.spec, Personality: c.order.setup.Personality, Seccomp: c.filter,
		User: c.root.users.user()}
	err := p.handshake(ch.pipe, proc, join, c.root.users, st, s.limited(ch.spawned, p, beforeExec))
	if st != nil {
		st.closeChild()
	}
	if err != nil {
		if st != nil {
			st.closeOurs()
		}
		return s.abandon(ch, p, err)
	}
	ch.pipe.Close()
	if st != nil {
		p.connect(st)
	} else if !r.Stdin {
		p.stdin.stop()
	}
	return nil
}

// limited sets the limits of a process that cannot do so itself, before what else comes before its exec.
func (s *Service) limited(one *spawned, p *process, before func() error) func() error {
	if p.container().root.users == nil {
		return before
	}
	return func() error {
		if err := s.children.unreaped(one, func(pid int) error { return stage.SetLimits(pid, p.spec) }); err != nil {
			return err
		}
		return before()
	}
}

// abandon ends a child that cannot become its process and gives the reason back.
func (s *Service) abandon(ch *child, p *process, err error) error {
	if kill := s.children.signal(ch.spawned, unix.SIGKILL); kill != nil && kill != unix.ESRCH {
		err = errors.Join(err, kill)
	}
	<-p.done
	p.forget()
	ch.pipe.Close()
	return err
}

// join puts a child into its container's cgroup.
func (s *Service) join(one *spawned, group cgroup) error {
	if err := s.children.unreaped(one, group.join); err != nil {
		return fmt.Errorf("join the container's cgroup: %w", err)
	}
	return nil
}

// adjustOOM sets the child's score before it is in the container.
func (s *Service) adjustOOM(one *spawned, spec *specs.Process) error {
	if spec.OOMScoreAdj == nil {
		return nil
	}
	score := []byte(strconv.Itoa(*spec.OOMScoreAdj))
	err := s.children.unreaped(one, func(pid int) error {
		return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), score, 0)
	})
	if err != nil {
		return fmt.Errorf("set oomScoreAdj: %w", err)
	}
	return nil
}

// begin lets the boot load in a while what no container waits for.
func (s *Service) begin() {
	s.begun.Do(func() { time.AfterFunc(startedAfter, s.opts.Started) })
}
