package moves

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	askBound = 15 * time.Second // of a node that is asked whether a VM fits it
	askMore  = time.Second      // for those that may be better, once it fits one
	askLimit = 16               // nodes at once
	tellWait = 5 * time.Second  // of events whose store is out of reach: the order or heartbeat is answered without them

	maxReasons = 64 << 10 // bytes of what all nodes say together
)

// Wake implements nodev1.MovesService. Any node may order a wake of the newest state whose place the controller
// chooses. It could wake the VM itself, or with move.pull = "controller" the VM comes to another one. On a named node
// that one and the VM's own node may. Nothing is written before a node is chosen, and the node that is opens the
// operation: of two orders one does.
func (s *Service) Wake(ctx context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	call := "wake VM " + key(order.GetWake().GetVm())
	if order.GetWake().GetLostNode() != "" {
		return nil, fmt.Errorf("%s: lost_node: order it on the controller's node for that node, or recover the VM: %w", call,
			errdefs.ErrInvalidArgument)
	}
	if id := order.GetWake().GetOperation(); id != "" {
		if known, err := s.ordered(controller.WithoutPeer(ctx), order.GetWake()); known != nil || err != nil {
			return known, err
		}
	}
	if err := s.mayWakeOn(ctx, call, order); err != nil {
		return nil, err
	}
	from, remote := controller.Peer(ctx)
	if !remote {
		from = s.Self
	}
	caller := ctx
	ctx = controller.WithoutPeer(ctx)
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: order.GetWake().GetVm()})
	if err != nil {
		return nil, err
	}
	wake := proto.CloneOf(order.GetWake())
	wake.Operation = cmp.Or(wake.GetOperation(), uuid.NewString())
	pulls := s.Pull.Allows(caller, rec, from)
	err = newestOnly(rec, wake, pulls)
	if err == nil && remote { // it is opened as the controller, which may wake from any
		err = controller.Policy{Pull: s.Pull}.GuardedWake(rec, wake.GetDigest())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	placed, err := s.placed(ctx, rec)
	if err == nil && placed {
		err = mayPlace(order, from, remote, pulls)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", call, err)
	case placed:
		return s.Placer.WakePlaced(ctx, &nodev1.WakeOrder{Wake: wake, On: order.GetOn()})
	}
	return s.wakeAsked(ctx, call, order.GetOn(), from, remote, rec, wake, pulls)
}

// placed reports whether a wake is placed later.
func (s *Service) placed(ctx context.Context, rec *nodev1.Record) (bool, error) {
	if s.Placer == nil {
		return false, nil
	}
	return s.Placer.ByPlace(ctx, rec)
}

// wakeAsked wakes on the node that is named, or on one of those that are asked whether the VM fits them.
func (s *Service) wakeAsked(ctx context.Context, call, on, from string, remote bool, rec *nodev1.Record,
	wake *nodev1.WakeRequest, pulls error) (*nodev1.StatusResponse, error) {
	to, err := s.place(ctx, on, from, rec, wake, pulls)
	if err == nil { // a cordon counts from the moment that it is answered, and nodes take their time to say what fits them
		err = s.cordoned(to)
	}
	if err == nil && remote {
		err = ownOutput(from, to, wake.GetStdio())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	peer, err := s.Peer(to)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	if s.Pull == controller.PullController { // the node could not open it itself
		if err := s.open(ctx, peer, rec, to, wake); err != nil {
			return nil, fmt.Errorf("%s: %w", call, err)
		}
	}
	status, err := peer.Wake(ctx, wake)
	if errors.As(err, new(*engine.LinkError)) { // it may have begun all the same
		if known, kerr := s.ordered(ctx, wake); known != nil && kerr == nil {
			return known, nil
		}
	}
	return status, err
}

// newestOnly refuses that a node which could not wake the VM itself gives its newest state up for an older one.
func newestOnly(rec *nodev1.Record, wake *nodev1.WakeRequest, pulls error) error {
	newest := !wake.GetForce() && (wake.GetDigest() == "" || wake.GetDigest() == rec.GetOwner().GetDigest())
	if pulls == nil || newest {
		return nil
	}
	return fmt.Errorf("restore another state than its newest one: %w", pulls)
}

// mayPlace refuses what a node may not order of a wake that is placed later.
func mayPlace(order *nodev1.WakeOrder, from string, remote bool, pulls error) error {
	if order.GetOn() == from && pulls != nil {
		return pulls
	}
	if !remote {
		return nil
	}
	return ownOutput(from, "", order.GetWake().GetStdio()) // where it goes is not known yet
}

// mayWakeOn refuses a node that names another one for a VM that it did not have last.
func (s *Service) mayWakeOn(ctx context.Context, call string, order *nodev1.WakeOrder) error {
	peer, remote := controller.Peer(ctx)
	on := order.GetOn()
	if on == "" || !remote || peer == on {
		return nil
	}
	rec, err := s.Records.Get(controller.WithoutPeer(ctx), &nodev1.GetRequest{Vm: order.GetWake().GetVm()})
	if err != nil {
		return err
	}
	return authorize(ctx, call+" on node "+on, append(controller.Homes(rec), on)...)
}

// open opens the wake here, for a node that is there to drive it and that the VM was not at last:
// the VM's own node opens it itself, once what it has under way with the VM is over.
func (s *Service) open(ctx context.Context, peer nodev1.PeerService, rec *nodev1.Record, to string,
	wake *nodev1.WakeRequest) error {
	if s.Pull.Allows(controller.WithPeer(ctx, to), rec, to) == nil {
		return nil
	}
	if _, err := peer.Query(ctx, &nodev1.PeerRef{Vm: wake.GetVm()}); err != nil {
		return err
	}
	op := &nodev1.Operation{
		Id: wake.GetOperation(), Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Generation: rec.GetGeneration(), Destination: to,
		Digest: wake.GetDigest(), Stdio: wake.GetStdio(), Managed: true,
	}
	open := &nodev1.OpenRequest{Vm: wake.GetVm(), Operation: op}
	if wake.GetForce() {
		open.ForceDigest, op.Repository = wake.GetDigest(), repositoryOf(rec, wake.GetDigest())
	}
	_, err := s.Records.Open(ctx, open)
	return err
}

// ordered answers an order that was given before: it stays where it is.
func (s *Service) ordered(ctx context.Context, wake *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	status, err := s.Engine.Status(ctx, wake.GetOperation())
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if op := status.GetOperation(); err == nil && (op.GetKind() != nodev1.Kind_KIND_WAKE ||
		key(op.GetVm()) != key(wake.GetVm())) {
		err = fmt.Errorf("wake VM %s: operation %s is a %s of VM %s: %w", key(wake.GetVm()), op.GetId(), op.GetKind(),
			key(op.GetVm()), errdefs.ErrAlreadyExists)
	}
	return status, err
}

// place is the node that the order goes to. What cannot be woken as the order says goes to where
// it was ordered, whose engine waits or refuses as the record asks for. With pulls, an error, it goes
// anywhere but there.
func (s *Service) place(ctx context.Context, on, from string, rec *nodev1.Record, wake *nodev1.WakeRequest,
	pulls error) (string, error) {
	if on != "" {
		if on == from {
			return on, pulls
		}
		return on, nil
	}
	digest := cmp.Or(wake.GetDigest(), rec.GetOwner().GetDigest())
	repository := repositoryOf(rec, digest)
	wakes := rec.GetOperation() == nil && rec.GetOwner().GetNode() == "" &&
		(wake.GetForce() || digest == rec.GetOwner().GetDigest())
	if !wakes || digest == "" || repository == "" {
		return from, pulls
	}
	all := s.ask(ctx, from, &nodev1.PeerCheckRequest{Vm: rec.GetVm(), Repository: repository, Digest: digest})
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if pulls != nil {
		for i, c := range all {
			if c.node == from {
				all[i] = candidate{node: from, err: pulls}
			}
		}
	}
	if to := best(all, from); to != "" { // it was chosen for the VM as it sleeps now
		wake.Generation, wake.Uid = cmp.Or(wake.GetGeneration(), rec.GetGeneration()), cmp.Or(wake.GetUid(), rec.GetUid())
		return to, nil
	}
	return "", s.noCapacity(ctx, from, rec, wake.GetOperation(), all)
}

// repositoryOf is where a snapshot lies; one that the record has forgotten, where its others do.
func repositoryOf(rec *nodev1.Record, digest string) string {
	repository := rec.GetRepository()
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == digest {
			return ref.GetRepository()
		}
		repository = cmp.Or(repository, ref.GetRepository())
	}
	return repository
}

// candidate is a node, and what it says of a VM.
type candidate struct {
	node  string
	resp  *nodev1.PeerCheckResponse // nil: err says why
	err   error
	takes bool // it was reached: with err, it could not tell whether the VM fits
}

func (c candidate) fits() bool { return c.resp != nil && len(c.resp.GetObstacles()) == 0 }

// why it does not fit.
func (c candidate) why() string {
	if c.resp != nil {
		return fmt.Sprintf("node %s: %s", c.node, strings.Join(c.resp.GetObstacles(), ", "))
	}
	return fmt.Sprintf("node %s: %v", c.node, c.err)
}

// ask all nodes at once, until no answer can be better than one that is there. The one where the
// order was given is up, whatever it announced.
func (s *Service) ask(ctx context.Context, from string, check *nodev1.PeerCheckRequest) []candidate {
	own, err := s.Cluster.Node(from)
	if err != nil {
		own = &nodev1.NodeInfo{Name: from}
	}
	own.Up = true
	nodes := slices.DeleteFunc(s.Cluster.Nodes(), func(n *nodev1.NodeInfo) bool { return n.GetName() == from })
	nodes = slices.Insert(nodes, 0, own) // asked first
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan candidate, len(nodes))
	go func() {
		var group errgroup.Group
		group.SetLimit(askLimit)
		for _, n := range nodes {
			group.Go(func() error {
				answers <- s.askOne(ctx, n, from, check)
				return nil
			})
		}
	}()
	var all []candidate
	var enough <-chan time.Time
	for over := false; !over && len(all) < len(nodes); {
		select {
		case c := <-answers:
			all = append(all, c)
			if c.fits() && enough == nil {
				enough = time.After(askMore)
			}
			over = settled(c, from)
		case <-enough:
			over = true
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.node, b.node) })
	return all
}

// settled reports whether nothing can be better: the node of the order has a copy.
func settled(c candidate, from string) bool {
	return c.node == from && c.fits() && c.resp.GetCopy()
}

func (s *Service) askOne(ctx context.Context, n *nodev1.NodeInfo, from string,
	check *nodev1.PeerCheckRequest) candidate {
	c := candidate{node: n.GetName()}
	if c.err = engine.Takes(n); c.err != nil {
		return c
	}
	peer, err := s.Peer(n.GetName())
	if err != nil {
		c.err = err
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	if c.resp, c.err = peer.Check(ctx, check); c.err != nil {
		late := errors.Is(c.err, context.DeadlineExceeded) && c.node != from // the one that orders lives, however slow it is
		c.resp, c.takes = nil, !late && !errors.As(c.err, new(*engine.LinkError))
	}
	return c
}

// best is the node that a VM goes to: of those that it fits one with a copy of the snapshot. Without a copy it is
// the node where the wake was ordered, then the one with the most room. It may be that none says that it fits, and
// that some could not tell, because the store is away or the snapshot damaged. Then the order goes to one of those:
// what its operation meets there waits for the store, or says what is wrong. Empty: none.
func best(all []candidate, from string) string {
	if fit := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !c.fits() }); len(fit) > 0 {
		return slices.MaxFunc(fit, func(a, b candidate) int {
			return cmp.Or(truth(a.resp.GetCopy())-truth(b.resp.GetCopy()), truth(a.node == from)-truth(b.node == from),
				cmp.Compare(a.resp.GetFreeBytes(), b.resp.GetFreeBytes()))
		}).node
	}
	open := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !c.takes })
	if len(open) == 0 {
		return ""
	}
	return slices.MaxFunc(open, func(a, b candidate) int { return truth(a.node == from) - truth(b.node == from) }).node
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// noCapacity refuses an order of a node, and tells of it once, however often it is tried.
func (s *Service) noCapacity(ctx context.Context, from string, rec *nodev1.Record, operation string,
	all []candidate) error {
	why := make([]string, 0, len(all))
	for _, c := range all {
		why = append(why, c.why())
	}
	reason := visible.Cut(strings.Join(why, "; "), maxReasons)
	ctx, cancel := context.WithTimeout(ctx, tellWait)
	defer cancel()
	if err := s.append(ctx, &nodev1.MoveEvent{Type: moves.NoCapacity, Vm: rec.GetVm(), Operation: operation, Source: from,
		Reason: reason}); err != nil {
		slog.WarnContext(ctx, "write event", "type", moves.NoCapacity, "vm", key(rec.GetVm()), "error", err)
	}
	return fmt.Errorf("%s: it fits no node, and sleeps on: %s: %w", moves.NoCapacity, reason, errdefs.ErrResourceExhausted)
}
