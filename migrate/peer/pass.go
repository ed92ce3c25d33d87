package peer

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What follows is passed on to the VM's shim.

// Offer implements nodev1.PeerService.
func (s *Server) Offer(ctx context.Context, req *nodev1.PeerRef) (*machinev1.OfferResponse, error) {
	return s.Machines.Offer(ctx, req.GetVm(), &machinev1.OfferRequest{Ref: req.GetRef()})
}

// Send implements nodev1.PeerService.
func (s *Server) Send(ctx context.Context, req *nodev1.PeerSendRequest) (*machinev1.SendResponse, error) {
	return s.Machines.Send(ctx, req.GetVm(), req.GetSend())
}

// Capture implements nodev1.PeerService.
func (s *Server) Capture(ctx context.Context, req *nodev1.PeerCaptureRequest) (*machinev1.CaptureResponse, error) {
	return s.Machines.Capture(ctx, req.GetVm(), req.GetCapture())
}

// Vote implements nodev1.PeerService.
func (s *Server) Vote(ctx context.Context, req *nodev1.PeerRef) (*machinev1.VoteResponse, error) {
	return s.Machines.Vote(ctx, req.GetVm(), &machinev1.VoteRequest{Ref: req.GetRef()})
}

// Revert implements nodev1.PeerService.
func (s *Server) Revert(ctx context.Context, req *nodev1.PeerRevertRequest) (*machinev1.RevertResponse, error) {
	return s.Machines.Revert(ctx, req.GetVm(), &machinev1.RevertRequest{Ref: req.GetRef(),
		OwnerGeneration: req.GetOwnerGeneration()})
}

// Tell implements nodev1.PeerService.
func (s *Server) Tell(ctx context.Context, req *nodev1.PeerTellRequest) (*machinev1.TellResponse, error) {
	return &machinev1.TellResponse{}, s.Machines.Tell(ctx, req.GetVm(), req.GetTell())
}

// What follows is ordered of the node's own engine.

// Wake implements nodev1.PeerService.
func (s *Server) Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return s.Engine.Wake(ctx, req)
}

// Hibernate implements nodev1.PeerService.
func (s *Server) Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	if err := named("hibernate", req); err != nil {
		return nil, err
	}
	return s.Engine.Hibernate(ctx, req)
}

// Checkpoint implements nodev1.PeerService.
func (s *Server) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	if err := named("checkpoint", req); err != nil {
		return nil, err
	}
	return s.Engine.Checkpoint(ctx, req)
}

// named refuses an order without a name: given again, because its answer was lost, it would be another one.
func named(verb string, req interface {
	GetVm() *nodev1.VM
	GetOperation() string
}) error {
	if req.GetOperation() != "" {
		return nil
	}
	return fmt.Errorf("%s VM %s: operation: it is empty, and needed: %w", verb, key(req.GetVm()),
		errdefs.ErrInvalidArgument)
}
