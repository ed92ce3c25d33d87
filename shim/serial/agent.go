package serial

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// The calls of the agent's service that mean something for a console.

// Read answers the console as stdout. There is no stderr.
func (p *Port) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	wait, cancel := context.WithTimeout(ctx, time.Duration(r.GetWaitMs())*time.Millisecond)
	defer cancel()
	if r.GetStream() != agentv1.Stream_STREAM_STDOUT {
		select {
		case <-wait.Done():
			return &agentv1.ReadResponse{Offset: r.GetOffset()}, ctx.Err()
		case <-p.ended:
			return &agentv1.ReadResponse{Offset: r.GetOffset(), Eof: true}, nil
		}
	}
	data, at, eof := p.Output(wait, r.GetOffset(), int(r.GetMax()))
	return &agentv1.ReadResponse{Data: data, Offset: at, Eof: eof}, ctx.Err()
}

// Write types on the console.
func (p *Port) Write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	taken, err := p.Type(ctx, r.GetOffset(), r.GetData())
	if err != nil {
		return nil, fmt.Errorf("write to serial console: %w: %w", err, errdefs.ErrUnavailable)
	}
	return &agentv1.WriteResponse{Offset: taken}, nil
}

// CloseStdin does nothing: a serial line has no end.
func (p *Port) CloseStdin(context.Context, *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error) {
	return &agentv1.CloseStdinResponse{}, nil
}

// Resize does nothing: a serial line has no size.
func (p *Port) Resize(context.Context, *agentv1.ResizeRequest) (*agentv1.ResizeResponse, error) {
	return &agentv1.ResizeResponse{}, nil
}

// Hold does nothing: what a serial line has in hand is in its device, and none of it in RAM.
func (p *Port) Hold(context.Context) error { return nil }

// Release does nothing.
func (p *Port) Release() {}

// Start finds the system booting.
func (p *Port) Start(_ context.Context, r *agentv1.StartRequest) (*agentv1.StartResponse, error) {
	if r.GetId() != "" {
		return nil, none("start a process")
	}
	return &agentv1.StartResponse{}, nil
}

// Wait never hears of an end: the VMM's is that of the task.
func (p *Port) Wait(ctx context.Context, _ *agentv1.WaitRequest) (*agentv1.WaitResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Info knows nothing of the guest.
func (p *Port) Info(context.Context, *agentv1.InfoRequest) (*agentv1.InfoResponse, error) {
	return &agentv1.InfoResponse{}, nil
}

// Processes is the console alone, at the offsets it has come to.
func (p *Port) Processes(context.Context, *agentv1.ProcessesRequest) (*agentv1.ProcessesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &agentv1.ProcessesResponse{Processes: []*agentv1.Process{{StdinOffset: p.input, StdoutOffset: p.start}}}, nil
}

// none says that no program in the guest could do what was asked for.
func none(what string) error {
	return fmt.Errorf("%s: the VM boots the system of its disk, where no agent of godwit's runs: %w", what,
		errdefs.ErrNotImplemented)
}

// Prepare is for container images.
func (p *Port) Prepare(context.Context, *agentv1.PrepareRequest) (*agentv1.PrepareResponse, error) {
	return nil, none("prepare the guest")
}

// Setup is for container images.
func (p *Port) Setup(context.Context, *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	return nil, none("set up the guest")
}

// Copy is for container images.
func (p *Port) Copy(context.Context, *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	return nil, none("copy files into the guest")
}

// ConfigureNetwork is what DHCP does for a VM disk.
func (p *Port) ConfigureNetwork(context.Context, *agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse,
	error) {
	return nil, none("configure the guest's network")
}

// Restored is told to agents alone.
func (p *Port) Restored(context.Context, *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	return nil, none("tell the guest of its restore")
}

// SetClock is told to agents alone.
func (p *Port) SetClock(context.Context, *agentv1.SetClockRequest) (*agentv1.SetClockResponse, error) {
	return nil, none("set the guest's clock")
}

// Kill needs a process.
func (p *Port) Kill(context.Context, *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	return nil, none("signal a process")
}

// Remove needs a process.
func (p *Port) Remove(context.Context, *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	return nil, none("forget a process")
}

// Stats are the host's.
func (p *Port) Stats(context.Context, *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	return nil, none("ask the guest for figures")
}

// Update has no container whose limits it could change.
func (p *Port) Update(context.Context, *agentv1.UpdateRequest) (*agentv1.UpdateResponse, error) {
	return nil, none("change limits in the guest")
}

// Sync is the business of the guest.
func (p *Port) Sync(context.Context, *agentv1.SyncRequest) (*agentv1.SyncResponse, error) {
	return nil, none("sync the guest's file systems")
}

// Shutdown is asked for by the power button.
func (p *Port) Shutdown(context.Context, *agentv1.ShutdownRequest) (*agentv1.ShutdownResponse, error) {
	return nil, none("shut the guest down")
}
