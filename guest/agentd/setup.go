package agentd

import (
	"context"
	"fmt"
	"strings"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
)

// Setup implements agentv1.AgentService.
func (s *Service) Setup(ctx context.Context, r *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	s.setupMu.Lock()
	defer s.setupMu.Unlock()
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	if s.pod.Load() != nil {
		return nil, fmt.Errorf("set up container: the guest has a pod: %w", errdefs.ErrFailedPrecondition)
	}
	o := &order{setup: r, content: r.AppendTo(nil)}
	if err := s.add(ctx, s.main(), o); err != nil {
		return nil, err
	}
	return &agentv1.SetupResponse{}, nil
}

// refuseUnknown keeps a guest that is older than the shim from running a container
// with less than was asked for.
func refuseUnknown(r interface{ Unknown() bool }) error {
	if !r.Unknown() {
		return nil
	}
	name := strings.TrimPrefix(fmt.Sprintf("%T", r), "*lean.")
	return fmt.Errorf("%s asks for what this guest does not know: its initramfs is older than the shim: %w", name,
		errdefs.ErrNotImplemented)
}

func describe(root rootfs, r *agentv1.SetupRequest) *stage.Container {
	c := &stage.Container{
		Root: root.path, User: root.users.user(), Hostname: r.Hostname, Sysctl: r.Sysctl, Masked: r.MaskedPaths,
		ReadOnly:     r.ReadOnlyPaths,
		ReadOnlyRoot: r.ReadOnlyRoot, Propagation: r.RootfsPropagation,
	}
	for _, m := range r.Mounts {
		c.Mounts = append(c.Mounts, stage.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	for _, m := range r.Copies {
		c.Copies = append(c.Copies, stage.Mount{Target: m.Target, Options: m.Options})
	}
	return c
}

// Copy implements agentv1.AgentService.
func (s *Service) Copy(ctx context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	c, err := s.container(r.Container)
	if err != nil {
		return nil, err
	}
	if err := c.turn.Take(ctx); err != nil {
		return nil, fmt.Errorf("copy files: %w", err)
	}
	defer c.turn.Give()
	if c.order == nil || c.id == "" && c.waiting == nil {
		return nil, fmt.Errorf("copy files: only between Setup and the first Start: %w", errdefs.ErrFailedPrecondition)
	}
	if err := s.copyFiles(ctx, c, r.Files); err != nil {
		return nil, err
	}
	return &agentv1.CopyResponse{}, nil
}
