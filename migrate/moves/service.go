// Package moves is the controller's service of moves and nodes: what the CLI and other
// programs order, and what nodes announce. The engine drives what is ordered here.
package moves

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Engine drives moves.
type Engine interface {
	Migrate(ctx context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error)
	Status(ctx context.Context, id string) (*nodev1.StatusResponse, error)
	Cancel(ctx context.Context, id, reason string) (*nodev1.StatusResponse, error)
}

// Cluster is what the controller knows of nodes and events.
type Cluster interface {
	Announce(ctx context.Context, said *nodev1.NodeInfo) (*nodev1.NodeInfo, error)
	Nodes() []*nodev1.NodeInfo
	Node(name string) (*nodev1.NodeInfo, error) // NotFound of one that has never announced itself
	Cordon(ctx context.Context, name string, undo bool) (*nodev1.NodeInfo, error)
	Events(ctx context.Context, after uint64, wait time.Duration) []*nodev1.MoveEvent
	Append(ctx context.Context, ev *nodev1.MoveEvent) error
}

// Placer opens wakes that are placed later.
type Placer interface {
	// ByPlace reports whether operations on a VM are placed later.
	ByPlace(ctx context.Context, rec *nodev1.Record) (bool, error)
	WakePlaced(ctx context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error)
}

// Service implements nodev1.MovesService at the controller.
type Service struct {
	Self    string // the controller's own node
	Records nodev1.RecordsService
	Engine  Engine
	Cluster Cluster
	Peer    func(node string) (nodev1.PeerService, error)
	Store   Store  // nil: it is never put back from a copy
	Placer  Placer // nil: nodes are asked whether a VM fits them

	Pull controller.Pull // empty: any

	causing turns
}

// Store is the store of the records as a whole.
type Store interface {
	State(ctx context.Context, req *nodev1.StateRequest) (*nodev1.StoreState, error)
	// Told is what a heartbeat of a node is answered, and whether it is asked to report.
	Told(ctx context.Context, node string) (state *nodev1.StoreState, report bool, err error)
}

var _ nodev1.MovesService = (*Service)(nil)

// authorize lets a node order what concerns itself; the controller's own host may order
// anything.
func authorize(ctx context.Context, what string, nodes ...string) error {
	peer, remote := controller.Peer(ctx)
	if !remote || peer != "" && slices.Contains(nodes, peer) {
		return nil
	}
	return fmt.Errorf("%s: node %s takes no part in it; order it on one of %q or on the controller: %w", what, peer, nodes,
		errdefs.ErrPermissionDenied)
}

// Migrate implements nodev1.MovesService.
func (s *Service) Migrate(ctx context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	if node, remote := controller.Peer(ctx); remote {
		nodes, err := s.parties(ctx, req)
		if err != nil {
			return nil, err
		}
		call := "move VM " + key(req.GetVm())
		if err := authorize(ctx, call, nodes...); err != nil {
			return nil, err
		}
		to := nodes[len(nodes)-1]
		if s.Placer != nil {
			to = "" // a scheduler may say another node
		}
		if err := ownOutput(node, to, req.GetStdio()); err != nil {
			return nil, fmt.Errorf("%s: %w", call, err)
		}
		if err := s.mayPull(ctx, req.GetVm(), req.GetTo()); err != nil {
			return nil, err
		}
	}
	return s.Engine.Migrate(controller.WithoutPeer(ctx), req)
}

// mayPull refuses a node that orders a VM to itself, where it may not. An order that stands is no new one.
func (s *Service) mayPull(ctx context.Context, vm *nodev1.VM, to string) error {
	if node, _ := controller.Peer(ctx); s.Pull != controller.PullController || node != to {
		return nil
	}
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil || rec.GetOperation().GetDestination() == to {
		return err
	}
	return s.Pull.Allows(ctx, rec, to)
}

// ownOutput refuses a node that says where output goes on another one: there that is a file that
// is written, or a program that is run, as root.
func ownOutput(node, to, uri string) error {
	if node == to || uri == "" || uri == record.NoOutput {
		return nil
	}
	return fmt.Errorf("stdio %q: it is not for node %s to say where output goes on node %q: leave it away, so that "+
		"stdio_uri of that node holds, or order this there or on the controller's node: %w",
		uri, node, to, errdefs.ErrPermissionDenied)
}

// parties are the nodes that an order concerns. One that is known stays its parties',
// wherever the VM is by now.
func (s *Service) parties(ctx context.Context, req *nodev1.MigrateRequest) ([]string, error) {
	if req.GetOperation() != "" {
		known, err := s.Records.Operation(ctx, &nodev1.OperationRequest{Id: req.GetOperation()})
		if op := known.GetOperation(); err == nil {
			return []string{op.GetSource(), op.GetDestination()}, nil
		}
		if !errdefs.IsNotFound(err) {
			return nil, err
		}
	}
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	return []string{rec.GetOwner().GetNode(), req.GetTo()}, err
}

// Get implements nodev1.MovesService.
func (s *Service) Get(ctx context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return s.Engine.Status(ctx, req.GetOperation())
}

// Abort implements nodev1.MovesService. A checkpoint can be called off as a move can. What is committed is not called
// off: a VM is moved back, and a snapshot is deleted.
func (s *Service) Abort(ctx context.Context, req *nodev1.AbortRequest) (*nodev1.StatusResponse, error) {
	status, err := s.Engine.Status(ctx, req.GetOperation())
	if err != nil {
		return nil, err
	}
	op := status.GetOperation()
	if err := authorize(ctx, "abort operation "+op.GetId(), op.GetSource(), op.GetDestination()); err != nil {
		return nil, err
	}
	switch p := op.GetPhase(); {
	case op.GetKind() != nodev1.Kind_KIND_MIGRATE && op.GetKind() != nodev1.Kind_KIND_CHECKPOINT:
		return nil, fmt.Errorf("abort operation %s: it is a %s: %w", op.GetId(), op.GetKind(), errdefs.ErrInvalidArgument)
	case p == nodev1.Phase_PHASE_ABORTED:
		return status, nil
	case status.GetSettled() || p >= nodev1.Phase_PHASE_COMMITTED && p != nodev1.Phase_PHASE_ABORTING:
		return nil, fmt.Errorf("abort operation %s: too late, it is %s; move the VM back, or delete the snapshot: %w",
			op.GetId(), p, errdefs.ErrFailedPrecondition)
	}
	reason := req.GetReason()
	if reason == "" {
		reason = "it was called off"
	}
	return s.Engine.Cancel(controller.WithoutPeer(ctx), op.GetId(), reason)
}

// Watch implements nodev1.MovesService.
func (s *Service) Watch(ctx context.Context, req *nodev1.WatchRequest, to nodev1.Moves_WatchServer) error {
	if err := controller.CheckRequest(req); err != nil {
		return record.ToWire(err)
	}
	return record.ToWire(moves.Follow(ctx, s, req, to.Send))
}

func key(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }

// Announce implements nodev1.MovesService: a node speaks for itself only.
func (s *Service) Announce(ctx context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	if err := authorize(ctx, "announce node "+req.GetNode().GetName(), req.GetNode().GetName()); err != nil {
		return nil, err
	}
	node := req.GetNode()
	if _, remote := controller.Peer(ctx); remote && (node.GetController() || node.GetControllerOnly()) {
		node = proto.CloneOf(node) // a controller has a list of its own
		node.Controller, node.ControllerOnly = false, false
	}
	info, err := s.Cluster.Announce(ctx, node)
	if err != nil {
		return nil, err
	}
	if err := s.hear(ctx, node.GetName(), req.GetEvents()); err != nil { // its heartbeat counts
		return nil, err
	}
	resp := &nodev1.AnnounceResponse{Cordoned: info.GetCordoned(), AgainMs: cluster.Interval.Milliseconds()}
	if s.Store != nil {
		state, report, err := s.Store.Told(ctx, node.GetName())
		if err != nil {
			return nil, err
		}
		resp.Incarnation, resp.Closed, resp.Report = state.GetIncarnation(), transition.Closed(state) != nil, report
	}
	return resp, nil
}

// Nodes implements nodev1.MovesService. One node costs no look at the others: each VM that is
// created asks whether its node is cordoned.
func (s *Service) Nodes(ctx context.Context, req *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	all, err := s.Records.List(ctx, &nodev1.ListRequest{Node: req.GetNode()})
	if err != nil {
		return nil, err
	}
	owns := map[string]uint32{}
	for _, rec := range all.GetRecords() {
		owns[rec.GetOwner().GetNode()]++
	}
	nodes := []*nodev1.NodeInfo{}
	if name := req.GetNode(); name == "" {
		nodes = s.Cluster.Nodes()
	} else if n, err := s.Cluster.Node(name); err == nil {
		nodes = append(nodes, n)
	} else if !errdefs.IsNotFound(err) {
		return nil, err
	}
	for _, n := range nodes {
		n.Vms = owns[n.GetName()]
	}
	resp := &nodev1.NodesResponse{Nodes: nodes}
	if s.Store != nil {
		resp.Store, err = s.Store.State(ctx, &nodev1.StateRequest{})
	}
	return resp, err
}

// Cordon implements nodev1.MovesService.
func (s *Service) Cordon(ctx context.Context, req *nodev1.CordonRequest) (*nodev1.CordonResponse, error) {
	if err := authorize(ctx, "cordon node "+req.GetNode(), req.GetNode()); err != nil {
		return nil, err
	}
	info, err := s.Cluster.Cordon(ctx, req.GetNode(), req.GetUndo())
	return &nodev1.CordonResponse{Node: info}, err
}

// cordoned refuses a node that is.
func (s *Service) cordoned(node string) error {
	n, _ := s.Cluster.Node(node) // one that the cluster does not know is not
	return engine.Cordoned(n)
}
