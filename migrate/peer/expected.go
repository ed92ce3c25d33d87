package peer

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/engine"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// expected are the orders for pods that are to move to this node. CRI makes the sandbox of a pod: its shim asks for the
// order. After a restart there is none until the controller repeats it. The zero value is ready.
type expected struct {
	mu  sync.Mutex
	all map[string]*nodev1.ExpectedResponse
}

func (e *expected) note(vm *nodev1.VM, order engine.Restore) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[string]*nodev1.ExpectedResponse{}
	}
	e.all[key(vm)] = &nodev1.ExpectedResponse{
		Operation: order.Intent.Operation, Attempt: order.Intent.Attempt, Stream: order.Intent.Stream,
	}
}

// has reports whether a pod was expected by that operation.
func (e *expected) has(vm *nodev1.VM, ref *machinev1.Ref) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.is(vm, ref)
}

// is is has for who holds the lock.
func (e *expected) is(vm *nodev1.VM, ref *machinev1.Ref) bool {
	order := e.all[key(vm)]
	return order.GetOperation() == ref.GetOperation() && order.GetAttempt() == ref.GetAttempt() && order != nil
}

func (e *expected) forget(vm *nodev1.VM, ref *machinev1.Ref) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.is(vm, ref) {
		delete(e.all, key(vm))
	}
}

// Expected answers what was ordered of a pod that is to move here. Unavailable: this node has heard of no order.
func (s *Server) Expected(_ context.Context, req *nodev1.ExpectedRequest) (*nodev1.ExpectedResponse, error) {
	s.expected.mu.Lock()
	defer s.expected.mu.Unlock()
	if order := s.expected.all[key(req.GetVm())]; order != nil {
		return order, nil
	}
	return nil, fmt.Errorf("node %s has heard of no move of VM %s: try again: %w", s.Node, key(req.GetVm()),
		errdefs.ErrUnavailable)
}

// preparePod is Prepare of a pod, which waits until CRI has made the sandbox here and has started each container. Only
// then the source sends: the pod stands still for no client.
func (s *Server) preparePod(ctx context.Context, req *nodev1.PeerPrepareRequest,
	order engine.Restore) (*nodev1.PeerPrepareResponse, error) {
	s.expected.note(req.GetVm(), order)
	in, err := s.Machines.Incoming(ctx, req.GetVm(), &machinev1.IncomingRequest{Ref: req.GetRef(),
		Spec: req.GetOffer().GetSpec()})
	missing := "its sandbox and its containers"
	switch {
	case err == nil && len(in.GetMissing()) == 0:
		return &nodev1.PeerPrepareResponse{Channel: in.GetChannel(), Certificate: in.GetCertificate(),
			Address: s.Address}, nil
	case err == nil:
		missing = strings.Join(in.GetMissing(), ", ")
	case !errdefs.IsNotFound(err) && !errdefs.IsUnavailable(err): // else there is no shim, or it has only begun to make it
		return nil, err
	default:
		over, why, err := s.Machines.GivenUp(req.GetVm(), req.GetRef())
		switch {
		case err == nil && over && why != "":
			return nil, fmt.Errorf("VM %s cannot come to node %s: %s: %w", key(req.GetVm()), s.Node, why,
				errdefs.ErrFailedPrecondition)
		case err == nil && over:
			return nil, fmt.Errorf("the sandbox that waited for VM %s on node %s was removed, or its shim has died: order the "+
				"move again: %w", key(req.GetVm()), s.Node, errdefs.ErrFailedPrecondition)
		}
	}
	sp, err := spec.Decode(req.GetOffer().GetSpec())
	if err != nil || sp.Pod == nil {
		return nil, fmt.Errorf("VM %s is offered as a pod, and is none: %w: %w", key(req.GetVm()),
			errdefs.ErrInvalidArgument, err)
	}
	return &nodev1.PeerPrepareResponse{Waits: fmt.Sprintf("pod %s/%s waits on node %s for %s: make and start them, with "+
		"crictl runp, create and start, or by its kubelet", sp.Pod.Namespace, sp.Pod.Name, s.Node, missing)}, nil
}

// start lets the VM run. The tasks of a pod were started before, and containerd has none by the name of the VM.
func (s *Server) start(ctx context.Context, req *nodev1.PeerRef) error {
	if s.expected.has(req.GetVm(), req.GetRef()) {
		return s.runPod(ctx, req)
	}
	return s.Tasks.Start(ctx, req.GetVm())
}

func (s *Server) runPod(ctx context.Context, req *nodev1.PeerRef) error {
	_, err := s.Machines.Run(ctx, req.GetVm(), &machinev1.RunRequest{Ref: req.GetRef()})
	if err == nil {
		s.expected.forget(req.GetVm(), req.GetRef())
	}
	return err
}

// discardPod ends what CRI has made here of a pod that does not come. CRI itself removes it.
func (s *Server) discardPod(ctx context.Context, req *nodev1.PeerRef) error {
	if !s.expected.has(req.GetVm(), req.GetRef()) {
		return nil
	}
	err := s.Machines.Abort(ctx, req.GetVm(), &machinev1.AbortRequest{Ref: req.GetRef(), Reason: "it does not come here"})
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	s.expected.forget(req.GetVm(), req.GetRef())
	return nil
}
