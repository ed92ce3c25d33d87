// Package peer is how the controller reaches a node about a move: the service that each
// node serves, and the client of it. The controller alone may call it, over mutual TLS;
// a controller that is a node too calls itself without the network.
package peer

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Machines orders the shims of this node.
type Machines interface {
	engine.Machines
	engine.Observer
	Mover
	Arrivals
	// Tell has the workload see that a snapshot is durable.
	Tell(ctx context.Context, vm *nodev1.VM, req *machinev1.TellRequest) error
}

// Mover are the calls of a move that goes from node to node.
type Mover interface {
	Offer(ctx context.Context, vm *nodev1.VM, req *machinev1.OfferRequest) (*machinev1.OfferResponse, error)
	Send(ctx context.Context, vm *nodev1.VM, req *machinev1.SendRequest) (*machinev1.SendResponse, error)
	Incoming(ctx context.Context, vm *nodev1.VM, req *machinev1.IncomingRequest) (*machinev1.IncomingResponse, error)
}

// Arrivals are the calls of a pod that comes to this node.
type Arrivals interface {
	Run(ctx context.Context, vm *nodev1.VM, req *machinev1.RunRequest) (*machinev1.RunResponse, error)
	// GivenUp reports whether this node has written down that the attempt never runs here, and why, if it knows.
	GivenUp(vm *nodev1.VM, ref *machinev1.Ref) (over bool, why string, err error)
}

// Placement says what stands against a VM coming here.
type Placement interface {
	Check(ctx context.Context, req *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error)
}

// Containers are containerd's. An error is not "no".
type Containers interface {
	Has(ctx context.Context, vm *nodev1.VM) (bool, error)
}

// Engine is this node's own.
type Engine interface {
	Wake(ctx context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error)
	Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error)
	Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error)
}

// Server implements nodev1.PeerService for one node. It answers errors of errdefs'
// classes.
type Server struct {
	Node      string
	Records   nodev1.RecordsService
	Address   string // of this node's peer listener
	Machines  Machines
	Tasks     engine.Tasks
	Departed  engine.Departed
	Placement Placement
	Engine    Engine

	Containers Containers // nil: whether there is one is unknown

	// Output is where the output of a VM goes.
	Output func(namespace, id string) (*url.URL, error)

	expected expected
}

var _ nodev1.PeerService = (*Server)(nil)

// Check implements nodev1.PeerService.
func (s *Server) Check(ctx context.Context, req *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	if req.GetSource() == s.Node {
		return &nodev1.PeerCheckResponse{Obstacles: []string{fmt.Sprintf("it is on node %s already", s.Node)}}, nil
	}
	return s.Placement.Check(ctx, req)
}

func restoreOf(ref *machinev1.Ref, digest string) engine.Restore {
	return engine.Restore{Intent: record.Intent{Operation: ref.GetOperation(), Attempt: ref.GetAttempt(), Digest: digest}}
}

// Prepare implements nodev1.PeerService. A task that it has made before is a success.
func (s *Server) Prepare(ctx context.Context, req *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	order := restoreOf(req.GetRef(), req.GetDigest())
	order.Repository, order.Stdio = req.GetRepository(), req.GetStdio()
	if o := req.GetOffer(); o != nil {
		order.Intent.Stream = &machinev1.Stream{
			Spec: o.GetSpec(), Facts: o.GetFacts(), Certificate: o.GetCertificate(), Generation: req.GetRef().GetGeneration(),
			TimeoutMs: req.GetTimeoutMs(), Resume: o.GetResume(),
		}
		if len(o.GetResume()) > 0 {
			return s.preparePod(ctx, req, order)
		}
	}
	if err := s.Tasks.Create(ctx, req.GetVm(), order); err != nil {
		return nil, err
	}
	if order.Intent.Stream == nil {
		return &nodev1.PeerPrepareResponse{}, s.prepared(ctx, req)
	}
	in, err := s.Machines.Incoming(ctx, req.GetVm(), &machinev1.IncomingRequest{Ref: req.GetRef()})
	if err != nil {
		return nil, err
	}
	return &nodev1.PeerPrepareResponse{Channel: in.GetChannel(), Certificate: in.GetCertificate(), Address: s.Address}, nil
}

// prepared fails unless the task is of the snapshot that is ordered. A task of the same attempt may be of
// another one: records that were put back from a copy have forgotten it, and the source has captured anew.
func (s *Server) prepared(ctx context.Context, req *nodev1.PeerPrepareRequest) error {
	q, err := s.Machines.Query(ctx, req.GetVm())
	if err == nil && q.GetDigest() != req.GetDigest() {
		err = fmt.Errorf("it was made from snapshot %q, ordered is %s: %w", q.GetDigest(), req.GetDigest(),
			errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("task of VM %s for operation %s: %w", key(req.GetVm()), req.GetRef().GetOperation(), err)
	}
	return nil
}

// States and records of a shim that the server looks for.
const (
	stateRunning   = "running"
	stateStopped   = "stopped"
	stateAborting  = "aborting" // its record is OWN again, and it does not run yet
	recordOwn      = "OWN"
	recordFenced   = "FENCED"
	recordPrepared = "PREPARED"
	recordReleased = "RELEASED"
)

// Run implements nodev1.PeerService. DataLoss says that the VM may have run here, and
// does not run any more (R9). The VM stands still meanwhile: what became of it before is asked
// only where it does not start, and a task that runs, was fenced or has ended does not.
func (s *Server) Run(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerRunResponse, error) {
	begun := time.Now()
	if err := s.start(ctx, req); err != nil {
		if resp, rerr := s.ran(ctx, req); resp != nil || rerr != nil {
			return resp, rerr
		}
		if !errdefs.IsNotFound(err) {
			return nil, err
		}
		if err := s.runPod(ctx, req); err != nil { // the daemon before this one was told of it
			return nil, err
		}
	}
	resp := s.runs(ctx, req.GetVm())
	resp.Ms = float64(time.Since(begun)) / float64(time.Millisecond)
	return resp, nil
}

// runs says since when the VM runs here, if its shim knows.
func (s *Server) runs(ctx context.Context, vm *nodev1.VM) *nodev1.PeerRunResponse {
	resp := &nodev1.PeerRunResponse{Running: true}
	if q, err := s.Machines.Query(ctx, vm); err == nil && q.GetResumedUnixNano() != 0 {
		resp.SinceMs = float64(time.Now().UnixNano()-q.GetResumedUnixNano()) / float64(time.Millisecond)
	}
	return resp
}

// ran says what became of the VM up to now; no response: it waits for its Start.
func (s *Server) ran(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerRunResponse, error) {
	running, err := s.Tasks.Running(ctx, req.GetVm())
	if err != nil {
		return nil, err
	}
	if running {
		return s.runs(ctx, req.GetVm()), nil
	}
	q, err := s.Machines.Query(ctx, req.GetVm())
	mine := q.GetRef().GetOperation() == req.GetRef().GetOperation() &&
		q.GetRef().GetAttempt() == req.GetRef().GetAttempt()
	switch {
	case errdefs.IsNotFound(err):
		return nil, fmt.Errorf("VM %s is gone from node %s, its destination: %w", key(req.GetVm()), s.Node,
			errdefs.ErrDataLoss)
	case err != nil:
		return nil, err
	case q.GetRecord() == recordFenced && mine:
		return &nodev1.PeerRunResponse{Fenced: true}, nil
	case q.GetRecord() == recordOwn && q.GetState() == stateStopped:
		return nil, fmt.Errorf("VM %s ended on node %s, its destination, after the commit: %w", key(req.GetVm()), s.Node,
			errdefs.ErrDataLoss)
	case q.GetRecord() == recordOwn && q.GetAdopted() && mine: // its shim died, and containerd has no task to start
		if q.GetState() == stateRunning {
			return &nodev1.PeerRunResponse{Running: true}, nil
		}
		return nil, fmt.Errorf("the successor of VM %s's shim takes the move to its end, the VM is %s: %w", key(req.GetVm()),
			q.GetState(), errdefs.ErrUnavailable)
	}
	return nil, nil
}

// Discard implements nodev1.PeerService: the records let the attempt run nowhere any more. A
// container object that was here before is marked as that of a VM which is elsewhere.
func (s *Server) Discard(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	if err := s.discardPod(ctx, req); err != nil {
		return nil, err
	}
	if err := s.Tasks.Undo(ctx, req.GetVm(),
		restoreOf(req.GetRef(), record.StreamPrefix+req.GetRef().GetOperation())); err != nil {
		return nil, err
	}
	state, err := s.Query(ctx, req)
	// what is left is a fence, whose shim has ended with the task: no call waits for the next one
	if errdefs.IsUnavailable(err) {
		return &nodev1.PeerState{Known: true}, nil
	}
	return state, err
}

// Query implements nodev1.PeerService.
func (s *Server) Query(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	q, err := s.Machines.Query(ctx, req.GetVm())
	state := &nodev1.PeerState{Known: true, Machine: q}
	if errdefs.IsNotFound(err) {
		state, err = &nodev1.PeerState{}, nil
	}
	if err == nil && req.GetContainer() {
		state.Container, err = s.container(ctx, req.GetVm())
	}
	return state, err
}

func (s *Server) container(ctx context.Context, vm *nodev1.VM) (nodev1.Presence, error) {
	if s.Containers == nil {
		return nodev1.Presence_PRESENCE_UNKNOWN, nil
	}
	there, err := s.Containers.Has(ctx, vm)
	switch {
	case err != nil:
		return nodev1.Presence_PRESENCE_UNKNOWN, err
	case there:
		return nodev1.Presence_PRESENCE_THERE, nil
	}
	return nodev1.Presence_PRESENCE_NONE, nil
}

// Abort implements nodev1.PeerService. A shim that has ended the operation by itself
// refuses; what it says of itself counts.
func (s *Server) Abort(ctx context.Context, req *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	err := s.Machines.Abort(ctx, req.GetVm(), &machinev1.AbortRequest{Ref: req.GetRef(), Reason: req.GetReason()})
	if errdefs.IsFailedPrecondition(err) {
		if q, qerr := s.Machines.Query(ctx, req.GetVm()); qerr == nil && q.GetRecord() == recordOwn &&
			q.GetState() != stateAborting {
			err = nil
		}
	}
	return &machinev1.AbortResponse{}, err
}

// Release implements nodev1.PeerService: the VM here goes, and what containerd holds of
// it. It may be repeated from any point. One that comes late, when the VM is here again,
// touches nothing.
func (s *Server) Release(ctx context.Context, req *nodev1.PeerReleaseRequest) (*nodev1.PeerState, error) {
	q, err := s.left(ctx, req)
	if err == nil && q != nil { // without a shim it was released before, and marked before that
		err = s.Departed.MarkDeparted(ctx, req.GetVm(), q.GetCreatedUnixNano(), req.GetDigest(), req.GetOwner())
	}
	if err != nil {
		return nil, err
	}
	err = s.Machines.Release(ctx, req.GetVm(), &machinev1.ReleaseRequest{Ref: req.GetRef(), Digest: req.GetDigest(),
		Moved: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	if err := s.Departed.CleanDeparted(ctx, req.GetVm(), req.GetDigest(), req.GetOwner()); err != nil {
		return nil, err
	}
	return &nodev1.PeerState{}, nil
}

// left wants this node's word that the VM here is the one which the order is about: that its
// shim has voted for it, or, where there is no shim, that nothing brings the VM back here. It answers
// what the shim has said; nil: there is none.
func (s *Server) left(ctx context.Context, req *nodev1.PeerReleaseRequest) (*machinev1.QueryResponse, error) {
	call := fmt.Sprintf("release VM %s for operation %s", key(req.GetVm()), req.GetRef().GetOperation())
	q, err := s.Machines.Query(ctx, req.GetVm())
	if err == nil {
		mine := q.GetRef().GetOperation() == req.GetRef().GetOperation() &&
			q.GetRef().GetAttempt() == req.GetRef().GetAttempt()
		if !mine || q.GetRecord() != recordPrepared && q.GetRecord() != recordReleased {
			return nil, fmt.Errorf("%s: node %s has it as %s of operation %q: %w", call, s.Node, q.GetRecord(),
				q.GetRef().GetOperation(), errdefs.ErrFailedPrecondition)
		}
		return q, nil
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case rec.GetOwner().GetNode() == s.Node || rec.GetOperation().GetDestination() == s.Node:
		return nil, fmt.Errorf("%s: it is node %s's again, or on its way there: %w", call, s.Node,
			errdefs.ErrFailedPrecondition)
	}
	return nil, nil
}

func key(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }
