package serial

import (
	"context"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// SetupPod is for pods.
func (p *Port) SetupPod(context.Context, *agentv1.SetupPodRequest) (*agentv1.SetupPodResponse, error) {
	return nil, none("set up a pod")
}

// AddVolume is for pods.
func (p *Port) AddVolume(context.Context, *agentv1.AddVolumeRequest) (*agentv1.AddVolumeResponse, error) {
	return nil, none("add a volume")
}

// RemoveVolume is for pods.
func (p *Port) RemoveVolume(context.Context, *agentv1.RemoveVolumeRequest) (*agentv1.RemoveVolumeResponse, error) {
	return nil, none("remove a volume")
}

// SyncVolume is for pods.
func (p *Port) SyncVolume(context.Context, *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse, error) {
	return nil, none("change a volume")
}

// AddContainer is for pods.
func (p *Port) AddContainer(context.Context, *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse, error) {
	return nil, none("add a container")
}

// RemoveContainer is for pods.
func (p *Port) RemoveContainer(context.Context,
	*agentv1.RemoveContainerRequest) (*agentv1.RemoveContainerResponse, error) {
	return nil, none("remove a container")
}

// ReadBack is for pods.
func (p *Port) ReadBack(context.Context, *agentv1.ReadBackRequest) (*agentv1.ReadBackResponse, error) {
	return nil, none("read a file back")
}

// Connect is for pods.
func (p *Port) Connect(context.Context, *agentv1.ConnectRequest) (*agentv1.ConnectResponse, error) {
	return nil, none("connect to a port")
}
