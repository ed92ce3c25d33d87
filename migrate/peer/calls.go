package peer

import (
	"context"
	"time"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// dialTimeout of a node that may be gone.
const dialTimeout = 5 * time.Second

// Check implements nodev1.PeerService.
func (r *remote) Check(ctx context.Context, req *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	return on(ctx, r, nodev1.PeerService.Check, req)
}

// Prepare implements nodev1.PeerService. Where the source shall send the VM is not the destination's
// to say: it is the address at which this connection has proved its name.
func (r *remote) Prepare(ctx context.Context, req *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	resp, err := on(ctx, r, nodev1.PeerService.Prepare, req)
	if err == nil {
		resp.Address = r.address
	}
	return resp, err
}

// Run implements nodev1.PeerService.
func (r *remote) Run(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerRunResponse, error) {
	return on(ctx, r, nodev1.PeerService.Run, req)
}

// Discard implements nodev1.PeerService.
func (r *remote) Discard(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return on(ctx, r, nodev1.PeerService.Discard, req)
}

// Query implements nodev1.PeerService.
func (r *remote) Query(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return on(ctx, r, nodev1.PeerService.Query, req)
}

// Offer implements nodev1.PeerService.
func (r *remote) Offer(ctx context.Context, req *nodev1.PeerRef) (*machinev1.OfferResponse, error) {
	return on(ctx, r, nodev1.PeerService.Offer, req)
}

// Send implements nodev1.PeerService.
func (r *remote) Send(ctx context.Context, req *nodev1.PeerSendRequest) (*machinev1.SendResponse, error) {
	return on(ctx, r, nodev1.PeerService.Send, req)
}

// Capture implements nodev1.PeerService.
func (r *remote) Capture(ctx context.Context, req *nodev1.PeerCaptureRequest) (*machinev1.CaptureResponse, error) {
	return on(ctx, r, nodev1.PeerService.Capture, req)
}

// Vote implements nodev1.PeerService.
func (r *remote) Vote(ctx context.Context, req *nodev1.PeerRef) (*machinev1.VoteResponse, error) {
	return on(ctx, r, nodev1.PeerService.Vote, req)
}

// Abort implements nodev1.PeerService.
func (r *remote) Abort(ctx context.Context, req *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	return on(ctx, r, nodev1.PeerService.Abort, req)
}

// Revert implements nodev1.PeerService.
func (r *remote) Revert(ctx context.Context, req *nodev1.PeerRevertRequest) (*machinev1.RevertResponse, error) {
	return on(ctx, r, nodev1.PeerService.Revert, req)
}

// Release implements nodev1.PeerService.
func (r *remote) Release(ctx context.Context, req *nodev1.PeerReleaseRequest) (*nodev1.PeerState, error) {
	return on(ctx, r, nodev1.PeerService.Release, req)
}

// Wake implements nodev1.PeerService.
func (r *remote) Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return on(ctx, r, nodev1.PeerService.Wake, req)
}

// Hibernate implements nodev1.PeerService.
func (r *remote) Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return on(ctx, r, nodev1.PeerService.Hibernate, req)
}

// Checkpoint implements nodev1.PeerService.
func (r *remote) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return on(ctx, r, nodev1.PeerService.Checkpoint, req)
}

// Tell implements nodev1.PeerService.
func (r *remote) Tell(ctx context.Context, req *nodev1.PeerTellRequest) (*machinev1.TellResponse, error) {
	return on(ctx, r, nodev1.PeerService.Tell, req)
}

// Log implements nodev1.PeerService.
func (r *remote) Log(ctx context.Context, req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	return on(ctx, r, nodev1.PeerService.Log, req)
}
