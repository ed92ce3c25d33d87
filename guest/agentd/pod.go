package agentd

import (
	"context"
	"fmt"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
)

func noPod(what string) error {
	return fmt.Errorf("%s: this guest runs one container: %w", what, errdefs.ErrNotImplemented)
}

// SetupPod implements agentv1.AgentService.
func (s *Service) SetupPod(context.Context, *agentv1.SetupPodRequest) (*agentv1.SetupPodResponse, error) {
	return nil, noPod("set up a pod")
}

// AddVolume implements agentv1.AgentService.
func (s *Service) AddVolume(context.Context, *agentv1.AddVolumeRequest) (*agentv1.AddVolumeResponse, error) {
	return nil, noPod("add a volume")
}

// RemoveVolume implements agentv1.AgentService.
func (s *Service) RemoveVolume(context.Context, *agentv1.RemoveVolumeRequest) (*agentv1.RemoveVolumeResponse, error) {
	return nil, noPod("remove a volume")
}

// SyncVolume implements agentv1.AgentService.
func (s *Service) SyncVolume(context.Context, *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse, error) {
	return nil, noPod("change a volume")
}

// AddContainer implements agentv1.AgentService.
func (s *Service) AddContainer(context.Context, *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse, error) {
	return nil, noPod("add a container")
}

// RemoveContainer implements agentv1.AgentService.
func (s *Service) RemoveContainer(context.Context,
	*agentv1.RemoveContainerRequest) (*agentv1.RemoveContainerResponse, error) {
	return nil, noPod("remove a container")
}

// ReadBack implements agentv1.AgentService.
func (s *Service) ReadBack(context.Context, *agentv1.ReadBackRequest) (*agentv1.ReadBackResponse, error) {
	return nil, noPod("read a file back")
}
