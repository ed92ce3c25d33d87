package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	moving "godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/transition"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Engine is what drives moves and wakes without a destination.
type Engine interface {
	Migrate(ctx context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error)
	WakePlaced(ctx context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error)
	Cancel(ctx context.Context, id, reason string) (*nodev1.StatusResponse, error)
}

// Peers reaches the nodes, which drive what they do with their own VMs.
type Peers interface {
	Peer(node string) (nodev1.PeerService, error)
	Node(name string) (*nodev1.NodeInfo, error)
}

// Orders gives the orders of VMOperations to who drives them. The uid of a VMOperation is the operation's id: so an
// order whose answer was lost is the same order when it is given again.
type Orders struct {
	Engine Engine
	Peers  Peers
	// Restores answers the snapshot that a VM of a lost node is woken from.
	Restores func(ctx context.Context, req *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error)
	Records  nodev1.RecordsService
	asks     *asks
}

// NewOrders returns orders that no node holds up for others.
func NewOrders(engine Engine, peers Peers, restores func(context.Context, *nodev1.RecoverRequest) (
	*nodev1.RecoverResponse, error), records nodev1.RecordsService) Orders {
	return Orders{Engine: engine, Peers: peers, Restores: restores, Records: records, asks: &asks{}}
}

var _ operator.Engine = Orders{}

// orderBound of one order. It has to be durable by then. Nodes are asked within askBound.
const orderBound = 20 * time.Second

// Order implements operator.Engine.
func (o Orders) Order(ctx context.Context, order operator.Order) (err error) {
	ctx, cancel := context.WithTimeout(ctx, orderBound)
	defer cancel()
	vm, uid, generation := order.Record.GetVm(), order.Record.GetUid(), order.Record.GetGeneration()
	switch order.Kind {
	case nodev1.Kind_KIND_WAKE:
		_, err = o.Engine.WakePlaced(ctx, &nodev1.WakeOrder{On: order.Node, Wake: &nodev1.WakeRequest{Vm: vm,
			Operation: order.ID, Uid: uid, Generation: generation}})
	case nodev1.Kind_KIND_MIGRATE:
		_, err = o.Engine.Migrate(ctx, migrate(vm, order))
	case nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_CHECKPOINT:
		err = o.ask(ctx, order)
	default:
		err = fmt.Errorf("%s: %w", order.Kind, errdefs.ErrNotImplemented)
	}
	if err != nil {
		return fmt.Errorf("order %s of VM %s: %w", order.ID, vm.GetId(), err)
	}
	return nil
}

// ask gives an order to the node that has the VM. One that is not up is not asked: the order waits for it.
func (o Orders) ask(ctx context.Context, order operator.Order) error {
	vm, uid, generation := order.Record.GetVm(), order.Record.GetUid(), order.Record.GetGeneration()
	bandwidth, node := uint64(deref(order.Policy.BandwidthPerSecond)), order.Record.GetOwner().GetNode()
	if node == "" {
		return fmt.Errorf("no node has it: %w", errdefs.ErrFailedPrecondition)
	}
	info, err := o.Peers.Node(node)
	switch {
	case errdefs.IsNotFound(err), err == nil && !info.GetUp():
		return fmt.Errorf("node %s has not been heard lately: %w", node, errdefs.ErrUnavailable)
	case err != nil:
		return err
	}
	peer, err := o.Peers.Peer(node)
	if err != nil {
		return err
	}
	return o.asks.do(ctx, node, func(ctx context.Context) error {
		if order.Kind == nodev1.Kind_KIND_HIBERNATE {
			_, err := peer.Hibernate(ctx, &nodev1.HibernateRequest{Vm: vm, Operation: order.ID, Uid: uid,
				Generation: generation, Bandwidth: bandwidth})
			return err
		}
		_, err := peer.Checkpoint(ctx, &nodev1.CheckpointRequest{Vm: vm, Operation: order.ID, Uid: uid,
			Generation: generation, Bandwidth: bandwidth})
		return err
	})
}

func migrate(vm *nodev1.VM, order operator.Order) *nodev1.MigrateRequest {
	const thousand = 1000
	p := order.Policy
	req := &nodev1.MigrateRequest{Vm: vm, To: order.Node, Operation: order.ID,
		DowntimeMs: int64(deref(p.MaxDowntimeMs)), TimeoutMs: thousand * int64(deref(p.TimeoutSeconds)),
		Bandwidth: uint64(deref(p.BandwidthPerSecond)), Mode: map[v1alpha1.Lane]string{v1alpha1.LaneLive: moves.ModeLive,
			v1alpha1.LaneCold: moves.ModeCold}[p.Lane]}
	for _, why := range p.AbortOn {
		req.AbortOn = append(req.AbortOn, strings.ToLower(string(why)))
	}
	return req
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Abort implements operator.Engine.
func (o Orders) Abort(ctx context.Context, vm *nodev1.VM, id string) error {
	ctx, cancel := context.WithTimeout(ctx, orderBound)
	defer cancel()
	if _, err := o.Engine.Cancel(ctx, id, "it was called off"); err != nil {
		return fmt.Errorf("abort operation %s of VM %s: %w", id, vm.GetId(), err)
	}
	return nil
}

// Ensure implements operator.Engine.
func (o Orders) Ensure(ctx context.Context, vm *nodev1.VM, uid string) error {
	_, err := o.Records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm, Uid: uid})
	return err
}

// Recover implements operator.Engine. An order without an id has one that follows from the record: of two orders for
// one loss, one is opened.
func (o Orders) Recover(ctx context.Context, order operator.Order) error {
	ctx, cancel := context.WithTimeout(ctx, orderBound)
	defer cancel()
	rec := order.Record
	lost := decide.InHand(rec)
	fail := func(err error) error {
		return fmt.Errorf("restore VM %s of the lost node %s: %w", rec.GetVm().GetId(), lost, err)
	}
	if err := o.silent(lost); err != nil {
		return fail(err)
	}
	digest := rec.GetOwner().GetDigest() // it sleeps already
	if digest == "" {
		from, err := o.Restores(ctx, restoreOf(order, lost))
		if order.FromSource && errors.Is(err, moving.ErrNothingHeld) && transition.Newest(rec) != nil {
			from, err = o.withoutSource(ctx, &order, lost)
		}
		if err != nil {
			return fail(err)
		}
		if order.FromSource {
			return nil
		}
		digest = from.GetDigest()
	}
	id := order.ID
	if id == "" {
		id = uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "godwit.dev/recover/%s/%d", rec.GetUid(),
			rec.GetVersion())).String()
	}
	if _, err := o.Engine.WakePlaced(ctx, &nodev1.WakeOrder{On: order.Node, Wake: &nodev1.WakeRequest{Vm: rec.GetVm(),
		Operation: id, Digest: digest, LostNode: lost, Uid: rec.GetUid(), Generation: rec.GetGeneration()}}); err != nil {
		return fail(err)
	}
	return nil
}

// sourcePause is between the two times that a source is asked which says that it has nothing.
const sourcePause = 2 * time.Second

// withoutSource asks the source of a move once more, which has said that it has nothing of the VM. If it says so again,
// it holds nothing newer than the snapshot: that is restored, as order says from then on.
func (o Orders) withoutSource(ctx context.Context, order *operator.Order, lost string) (*nodev1.RecoverResponse,
	error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(sourcePause):
	}
	from, err := o.Restores(ctx, restoreOf(*order, lost))
	if !errors.Is(err, moving.ErrNothingHeld) {
		return from, err
	}
	order.FromSource = false
	return o.Restores(ctx, restoreOf(*order, lost))
}

// restoreOf asks for the snapshot that a VM of a lost node is woken from. Or it has the source of its move go on.
// What the source of a move holds is newer than any snapshot: one is named if that is given up.
func restoreOf(order operator.Order, lost string) *nodev1.RecoverRequest {
	rec := order.Record
	req := &nodev1.RecoverRequest{Vm: rec.GetVm(), LostNode: lost, Generation: rec.GetGeneration(),
		FromSource: order.FromSource, Fenced: order.FromSource}
	if !order.FromSource && transition.Kept(rec) != nil {
		req.Digest = transition.Newest(rec).GetDigest()
	}
	return req
}

// GiveUp implements operator.Engine.
func (o Orders) GiveUp(ctx context.Context, rec *nodev1.Record, hold []string) error {
	ctx, cancel := context.WithTimeout(ctx, orderBound)
	defer cancel()
	lost := decide.InHand(rec)
	err := o.silent(lost)
	if err == nil {
		_, err = o.Records.Remove(ctx, &nodev1.RemoveRequest{Vm: rec.GetVm(), Uid: rec.GetUid(), Force: true,
			DropSnapshots: true, LostNode: lost, Hold: hold, Version: rec.GetVersion()})
	}
	if err != nil {
		return fmt.Errorf("give VM %s up with the lost node %s: %w", rec.GetVm().GetId(), lost, err)
	}
	return nil
}

// Tell implements operator.Engine. The node refuses it if its VM is not that of the record any more.
func (o Orders) Tell(ctx context.Context, told operator.Told) error {
	ctx, cancel := context.WithTimeout(ctx, orderBound)
	defer cancel()
	vm := told.Record.GetVm()
	peer, err := o.Peers.Peer(told.Record.GetOwner().GetNode())
	if err == nil {
		_, err = peer.Tell(ctx, &nodev1.PeerTellRequest{Vm: vm, Tell: &machinev1.TellRequest{Snapshot: told.Name,
			Digest: told.Digest, Ref: &machinev1.Ref{Operation: told.Operation, Generation: told.Record.GetGeneration()}}})
	}
	if err != nil {
		return fmt.Errorf("tell VM %s that snapshot %s is Ready: %w", vm.GetId(), told.Digest, err)
	}
	return nil
}

// silent refuses to call a node lost that sends heartbeats.
func (o Orders) silent(lost string) error {
	node, err := o.Peers.Node(lost)
	switch {
	case lost == "":
		return fmt.Errorf("no node has the VM: %w", errdefs.ErrFailedPrecondition)
	case err != nil && !errdefs.IsNotFound(err):
		return err
	case node.GetUp():
		return fmt.Errorf("stop it, or take its taint away: %w", operator.ErrNodeAnswers)
	}
	return nil
}
