package client

import (
	"context"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// Info implements agentv1.AgentService.
func (a *Agent) Info(ctx context.Context, r *agentv1.InfoRequest) (*agentv1.InfoResponse, error) {
	return call(ctx, a, agentv1.AgentService.Info, r)
}

// Prepare implements agentv1.AgentService.
func (a *Agent) Prepare(ctx context.Context, r *agentv1.PrepareRequest) (*agentv1.PrepareResponse, error) {
	return call(ctx, a, agentv1.AgentService.Prepare, r)
}

// Copy implements agentv1.AgentService.
func (a *Agent) Copy(ctx context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	return call(ctx, a, agentv1.AgentService.Copy, r)
}

// ConfigureNetwork implements agentv1.AgentService.
func (a *Agent) ConfigureNetwork(ctx context.Context,
	r *agentv1.ConfigureNetworkRequest) (*agentv1.ConfigureNetworkResponse, error) {
	return call(ctx, a, agentv1.AgentService.ConfigureNetwork, r)
}

// SetClock implements agentv1.AgentService.
func (a *Agent) SetClock(ctx context.Context, r *agentv1.SetClockRequest) (*agentv1.SetClockResponse, error) {
	return call(ctx, a, agentv1.AgentService.SetClock, r)
}

// Start implements agentv1.AgentService.
func (a *Agent) Start(ctx context.Context, r *agentv1.StartRequest) (*agentv1.StartResponse, error) {
	return call(ctx, a, agentv1.AgentService.Start, r)
}

// Kill implements agentv1.AgentService. The signal has a name. So a call that is issued again,
// because its answer was lost with its session, is not a second signal.
func (a *Agent) Kill(ctx context.Context, r *agentv1.KillRequest) (*agentv1.KillResponse, error) {
	r = proto.CloneOf(r)
	r.Once = rand.Uint64()
	return call(ctx, a, agentv1.AgentService.Kill, r)
}

// Write implements agentv1.AgentService.
func (a *Agent) Write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	return call(ctx, a, agentv1.AgentService.Write, r)
}

// CloseStdin implements agentv1.AgentService.
func (a *Agent) CloseStdin(ctx context.Context, r *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error) {
	return call(ctx, a, agentv1.AgentService.CloseStdin, r)
}

// Resize implements agentv1.AgentService.
func (a *Agent) Resize(ctx context.Context, r *agentv1.ResizeRequest) (*agentv1.ResizeResponse, error) {
	return call(ctx, a, agentv1.AgentService.Resize, r)
}

// Stats implements agentv1.AgentService.
func (a *Agent) Stats(ctx context.Context, r *agentv1.StatsRequest) (*agentv1.StatsResponse, error) {
	return call(ctx, a, agentv1.AgentService.Stats, r)
}

// Update implements agentv1.AgentService.
func (a *Agent) Update(ctx context.Context, r *agentv1.UpdateRequest) (*agentv1.UpdateResponse, error) {
	return call(ctx, a, agentv1.AgentService.Update, r)
}

// Sync implements agentv1.AgentService.
func (a *Agent) Sync(ctx context.Context, r *agentv1.SyncRequest) (*agentv1.SyncResponse, error) {
	return call(ctx, a, agentv1.AgentService.Sync, r)
}

// Shutdown implements agentv1.AgentService.
func (a *Agent) Shutdown(ctx context.Context, r *agentv1.ShutdownRequest) (*agentv1.ShutdownResponse, error) {
	return call(ctx, a, agentv1.AgentService.Shutdown, r)
}
