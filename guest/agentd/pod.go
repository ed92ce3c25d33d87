package agentd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// pod is what the containers of a guest share. It never changes once it is there.
type pod struct {
	content []byte // of the request that made it
	cgroup  cgroup
	dir     string     // where the writable disk is mounted
	pause   *process   // holds the namespaces
	shared  []*os.File // the ipc and uts namespaces
}

// SetupPod implements agentv1.AgentService.
func (s *Service) SetupPod(ctx context.Context, r *agentv1.SetupPodRequest) (*agentv1.SetupPodResponse, error) {
	s.setupMu.Lock()
	defer s.setupMu.Unlock()
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	content := r.AppendTo(nil)
	if p := s.pod.Load(); p != nil {
		if bytes.Equal(p.content, content) {
			return &agentv1.SetupPodResponse{}, nil
		}
		return nil, fmt.Errorf("set up pod: it has been set up otherwise: %w", errdefs.ErrFailedPrecondition)
	}
	if s.main().order != nil {
		return nil, fmt.Errorf("set up pod: the guest has a container already: %w", errdefs.ErrFailedPrecondition)
	}
	p := &pod{content: content, cgroup: cgroup(s.opts.CgroupRoot).below("c"), dir: filepath.Join(s.opts.Dir, podID)}
	disk := &rootfs{dir: s.opts.Dir}
	if err := s.makePod(p, disk, r); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("set up pod: %w", err), s.unmakePod(undo, p, disk))
	}
	s.mu.Lock()
	s.processes[podID] = p.pause
	s.mu.Unlock()
	s.pod.Store(p)
	return &agentv1.SetupPodResponse{}, nil
}

// makePod does the steps, each of which may fail.
func (s *Service) makePod(p *pod, disk *rootfs, r *agentv1.SetupPodRequest) error {
	resources, err := parseResources(r.Resources)
	if err != nil {
		return err
	}
	if err := s.opts.Ready(); err != nil {
		return err
	}
	if !s.held { // else it is
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	if r.Writable != nil {
		_, err = disk.disk(podID, r.Writable, s.diskFinder(context.Background()))
	} else {
		_, err = disk.make(podID, "tmpfs", "tmpfs", 0, "mode=755")
	}
	if err != nil {
		return err
	}
	if err := s.reached("pod cgroup"); err != nil {
		return err
	}
	group, err := makeCgroup(cgroup(s.opts.CgroupRoot), "c")
	if err != nil {
		return err
	}
	if err := group.applyToPod(resources); err != nil {
		return err
	}
	if err := s.makePause(p, r); err != nil {
		return err
	}
	return s.reached("pod end")
}

// makePause starts the process that holds the namespaces, and opens those that every container enters.
func (s *Service) makePause(p *pod, r *agentv1.SetupPodRequest) error {
	group, err := makeCgroup(p.cgroup, podID)
	if err != nil {
		return err
	}
	c := newContainer(podID, group, s.opts.Dir)
	sp, err := s.takePause(c)
	if err != nil {
		return err
	}
	box := &stage.Container{Root: s.opts.Dir, Hostname: r.Hostname, Sysctl: r.Sysctl}
	if err := s.lead(sp, box, nil); err != nil {
		return err
	}
	p.pause = sp.process
	p.pause.stdin.stop()
	p.pause.stdout.end()
	p.pause.stderr.end()
	if err := sp.pipe.Close(); err != nil {
		return fmt.Errorf("close stage socket: %w", err)
	}
	return s.children.unreaped(sp.spawned, func(pid int) error {
		for _, name := range []string{"ipc", "uts"} {
			f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
			if err != nil {
				return fmt.Errorf("open namespace: %w", err)
			}
			p.shared = append(p.shared, f)
		}
		return nil
	})
}

// unmakePod takes away what there is of a pod that has no container.
func (s *Service) unmakePod(ctx context.Context, p *pod, disk *rootfs) error {
	for _, f := range p.shared {
		f.Close()
	}
	if p.pause != nil {
		if err := s.children.signal(p.pause.spawned, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("end pod: %w", err)
		}
		<-p.pause.done
	}
	if err := disk.unmount(); err != nil {
		return err
	}
	_ = os.Remove(p.dir) // an empty mount point does no harm
	if _, err := os.Stat(string(p.cgroup)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := p.cgroup.end(ctx); err != nil {
		return err
	}
	return p.cgroup.remove()
}

// startPod answers a Start of the process that SetupPod has started.
func (s *Service) startPod() (*agentv1.StartResponse, error) {
	p := s.pod.Load().pause
	s.begin()
	return &agentv1.StartResponse{Pid: uint32(p.pid)}, nil
}
