package client

import (
	"context"

	agentv1 "godwit.dev/godwit/api/agent/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// SetupPod implements agentv1.AgentService.
func (a *Agent) SetupPod(ctx context.Context, r *agentv1.SetupPodRequest) (*agentv1.SetupPodResponse, error) {
	return call(ctx, a, agentv1.AgentService.SetupPod, r)
}

// AddVolume implements agentv1.AgentService.
func (a *Agent) AddVolume(ctx context.Context, r *agentv1.AddVolumeRequest) (*agentv1.AddVolumeResponse, error) {
	return call(ctx, a, agentv1.AgentService.AddVolume, r)
}

// RemoveVolume implements agentv1.AgentService.
func (a *Agent) RemoveVolume(ctx context.Context,
	r *agentv1.RemoveVolumeRequest) (*agentv1.RemoveVolumeResponse, error) {
	return call(ctx, a, agentv1.AgentService.RemoveVolume, r)
}

// SyncVolume implements agentv1.AgentService. A revision may be of any size and number of entries:
// what does not fit one message goes in several, unless the caller does that itself.
func (a *Agent) SyncVolume(ctx context.Context, r *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse, error) {
	batches := split(r.Entries)
	part := r.Part
	for ; len(batches) > 1; part++ {
		_, err := call(ctx, a, agentv1.AgentService.SyncVolume, &agentv1.SyncVolumeRequest{
			Volume: r.Volume, Revision: r.Revision, Entries: batches[0], Part: part,
		})
		if err != nil {
			return nil, err
		}
		batches = batches[1:]
	}
	end := &agentv1.SyncVolumeRequest{Volume: r.Volume, Revision: r.Revision, Last: r.Last, Part: part}
	if len(batches) > 0 {
		end.Entries = batches[0]
	}
	return call(ctx, a, agentv1.AgentService.SyncVolume, end)
}

// AddContainer implements agentv1.AgentService. As with Setup, files that do not fit one message
// follow in Copy.
func (a *Agent) AddContainer(ctx context.Context,
	r *agentv1.AddContainerRequest) (*agentv1.AddContainerResponse, error) {
	batches := split(r.GetSetup().GetFiles())
	if len(batches) > 1 {
		head := &agentv1.AddContainerRequest{Container: r.Container, Pid: r.Pid, Volumes: r.Volumes, Setup: bare(r.Setup),
			Devices: r.Devices, OpenDevices: r.OpenDevices}
		head.Setup.Files = batches[0]
		batches, r = batches[1:], head
	} else {
		batches = nil
	}
	resp, err := call(ctx, a, agentv1.AgentService.AddContainer, r)
	if err != nil {
		return nil, err
	}
	if err := a.copyAll(ctx, r.Container, batches); err != nil {
		return nil, err
	}
	return resp, nil
}

// copyAll copies files into a container, a message for each batch.
func (a *Agent) copyAll(ctx context.Context, container string, batches [][]*agentv1.File) error {
	for _, files := range batches {
		if _, err := a.Copy(ctx, &agentv1.CopyRequest{Files: files, Container: container}); err != nil {
			return err
		}
	}
	return nil
}

// bare is a copy of a Setup without its files, which may be long.
func bare(r *agentv1.SetupRequest) *agentv1.SetupRequest {
	out := new(agentv1.SetupRequest)
	to := out.ProtoReflect()
	r.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() != "files" {
			to.Set(f, v)
		}
		return true
	})
	return proto.CloneOf(out)
}

// RemoveContainer implements agentv1.AgentService.
func (a *Agent) RemoveContainer(ctx context.Context,
	r *agentv1.RemoveContainerRequest) (*agentv1.RemoveContainerResponse, error) {
	return call(ctx, a, agentv1.AgentService.RemoveContainer, r)
}

// ReadBack implements agentv1.AgentService.
func (a *Agent) ReadBack(ctx context.Context, r *agentv1.ReadBackRequest) (*agentv1.ReadBackResponse, error) {
	return call(ctx, a, agentv1.AgentService.ReadBack, r)
}

// Connect implements agentv1.AgentService.
func (a *Agent) Connect(ctx context.Context, r *agentv1.ConnectRequest) (*agentv1.ConnectResponse, error) {
	return call(ctx, a, agentv1.AgentService.Connect, r)
}
