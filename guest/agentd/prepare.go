package agentd

import (
	"context"
	"fmt"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Prepare implements agentv1.AgentService. Whatever is done here is done once for all the
// guests that are copies of this one: nothing that names a guest, and nothing that draws a
// secret from the kernel's generator before Restored has given it entropy of its own.
func (s *Service) Prepare(_ context.Context, r *agentv1.PrepareRequest) (*agentv1.PrepareResponse, error) {
	s.setupMu.Lock()
	defer s.setupMu.Unlock()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("ask kernel version: %w", err)
	}
	if s.pod.Load() != nil || s.main().order != nil {
		return nil, fmt.Errorf("prepare guest: it has a container: %w", errdefs.ErrFailedPrecondition)
	}
	if !s.held { // once, whatever of the rest fails and is asked for again
		if err := s.opts.Hold(); err != nil {
			return nil, fmt.Errorf("prepare guest: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		s.held = true
	}
	if !s.prepared {
		if err := loopbackUp(); err != nil {
			return nil, err
		}
		if err := s.spawnSpares(r.Pod); err != nil {
			return nil, err
		}
		s.prepared = true
	}
	return &agentv1.PrepareResponse{Version: s.opts.Version, Kernel: unix.ByteSliceToString(u.Release[:])}, nil
}

// spawnSpares starts the stages that each copy uses once: the init of a container, and of a pod what holds its
// namespaces. A pod has a fork server, too. Nothing else of the guest uses it yet.
func (s *Service) spawnSpares(pod bool) error {
	init, err := s.spawnInit(s.main(), alone)
	if err != nil {
		return err
	}
	var pause *spare
	if pod {
		if pause, err = s.spawnInit(s.main(), pauseBirth); err != nil {
			return s.endStage(init, err)
		}
	}
	s.mu.Lock()
	s.spare, s.sparePause = init, pause
	s.mu.Unlock()
	if pod { // probes are execs
		_, _ = s.forkServer() // else the first exec starts it
	}
	return nil
}
