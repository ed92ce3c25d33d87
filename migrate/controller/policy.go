package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Policy is what a controller takes of other nodes, in addition to the rules of the records. Its own host is bound
// by none of it. The zero value bounds nothing but that a repository is the VM's own.
type Policy struct {
	// Repositories are the prefixes below which the repositories of VMs may lie; empty: anywhere.
	Repositories []string
	// Records and Operations bound the records that a node has made and that stand, and the operations
	// that it drives at once; 0: no bound.
	Records, Operations int
	// Deletions bound the pending ones that a node has decided: where it has more, it opens no checkpoint; 0: no bound.
	// A hibernate is never refused by it: a VM that is stopped would lose its memory.
	Deletions int
	// Pull is whether a node may fetch any VM to itself.
	Pull Pull
	// OwnWakes: a VM whose record no node made wakes by the controller's own order alone, which says in which place.
	OwnWakes bool
	// Reserved are names under which no node makes a record; nil: none is.
	Reserved func(vm *nodev1.VM) bool
	// Boots refuses that a node boots a VM whose record no node made; nil: each node may.
	Boots func(ctx context.Context, rec *nodev1.Record, node string) error
	// Places refuses a checkpoint that goes elsewhere than the VM's others, unless the controller has ordered it of
	// that node; nil: each is refused.
	Places func(ctx context.Context, rec *nodev1.Record, op *nodev1.Operation, node string) error
}

// mostDeletions of a node may be pending. A registry that deletes nothing lets them come to this.
const mostDeletions = 100_000

// PolicyOf is the policy of a configuration. Repositories of VMs may lie below own too, the prefix of the
// node's [registry]; empty: it has none.
func PolicyOf(cfg *config.Config, own string) Policy {
	p := Policy{
		Repositories: cfg.Controller.Repositories, Records: cfg.Controller.RecordsPerNode,
		Operations: cfg.Controller.OperationsPerNode, Deletions: mostDeletions,
		Pull: Pull(cfg.Move.Pull),
	}
	if own != "" && !cfg.Registry.Own {
		p.Repositories = append([]string{own}, p.Repositories...)
	}
	return p
}

// maxListed bounds the snapshots of one record: more than retention.keep and a schedule keep at most.
const maxListed = 10_200

// Pull says who opens an operation that brings a VM to a node which did not have it last.
type Pull string

// Values of Pull.
const (
	PullAny        Pull = "any"        // that node too
	PullController Pull = "controller" // the VM's own node, or the controller
)

// Allows reports whether a node may order that a VM comes to a node.
func (p Pull) Allows(ctx context.Context, rec *nodev1.Record, to string) error {
	peer, remote := Peer(ctx)
	if p != PullController || !remote || peer != to || slices.Contains(homes(rec), peer) {
		return nil
	}
	return fmt.Errorf("bring VM %s/%s to node %s: that node did not have it last, and move.pull is %q. To go on, "+
		"order it on the controller, or on a node that had it (%s): %w",
		rec.GetVm().GetNamespace(), rec.GetVm().GetId(), peer, p, strings.Join(homes(rec), ", "),
		errdefs.ErrPermissionDenied)
}

// Under makes s bind other nodes by p. Call it before s is served.
func (s *Service) Under(p Policy) *Service {
	s.policy = p
	return s
}

// judge refuses a change by another node that the policy does not take, and notes whose it is.
func (s *Service) judge(ctx context.Context, was *nodev1.Record, change transition.Change) error {
	peer, remote := Peer(ctx)
	if !remote {
		return nil
	}
	if err := cmp.Or(decidedBy(peer, change.PendingDeletions), guarded(was, change)); err != nil {
		return err
	}
	now := change.Record
	if now == nil {
		return nil
	}
	if was == nil {
		if err := s.policy.makes(now.GetVm()); err != nil {
			return err
		}
		now.MadeBy, now.Home = peer, peer
	}
	op := now.GetOperation()
	if err := s.place(ctx, was, op, peer); err != nil {
		return err
	}
	opens := op != nil && op.GetId() != was.GetOperation().GetId()
	wakes := opens && op.GetKind() == nodev1.Kind_KIND_WAKE
	stores := opens && !wakes
	if n := len(now.GetSnapshots()); stores && n >= maxListed {
		return fmt.Errorf("VM %s/%s has %d snapshots, of %d that it may. To delete some: godwit snapshot prune: %w",
			op.GetVm().GetNamespace(), op.GetVm().GetId(), n, maxListed, errdefs.ErrResourceExhausted)
	}
	if wakes && s.policy.OwnWakes && was.GetMadeBy() == "" {
		return fmt.Errorf("wake VM %s/%s at node %s: the VM is an object of the controller, which wakes it. To wake it, "+
			"set operatingMode Running in its VirtualMachine: %w", op.GetVm().GetNamespace(), op.GetVm().GetId(), peer,
			errdefs.ErrPermissionDenied)
	}
	if err := s.boots(ctx, was, now, peer); err != nil {
		return err
	}
	if wakes || claims(was, now, peer) {
		if err := cmp.Or(s.policy.Pull.Allows(ctx, was, peer), s.policy.GuardedWake(was, op.GetDigest())); err != nil {
			return err
		}
	}
	return s.tally.admit(ctx, s, peer, adds{record: was == nil, operation: opens,
		checkpoint: opens && op.GetKind() == nodev1.Kind_KIND_CHECKPOINT})
}

// decidedBy notes who has decided deletions.
func decidedBy(peer string, deletions []*nodev1.Owed) error {
	for _, o := range deletions {
		if o.GetPayer() != "" && o.GetPayer() != peer {
			return fmt.Errorf("delete a snapshot of VM %s/%s: payer %q: a node says of itself alone that it deletes: %w",
				o.GetVm().GetNamespace(), o.GetVm().GetId(), o.GetPayer(), errdefs.ErrPermissionDenied)
		}
		o.By = peer
	}
	return nil
}

// makes refuses that a node makes a record under a name that is kept for the controller.
func (p Policy) makes(vm *nodev1.VM) error {
	if p.Reserved == nil || !p.Reserved(vm) {
		return nil
	}
	return fmt.Errorf("make a record of VM %s/%s: the controller alone makes records of that name: %w",
		vm.GetNamespace(), vm.GetId(), errdefs.ErrPermissionDenied)
}

// boots asks the policy whether a node may take a VM of the controller that nothing has: no operation brings it.
func (s *Service) boots(ctx context.Context, was, now *nodev1.Record, peer string) error {
	if s.policy.Boots == nil || was == nil || was.GetMadeBy() != "" || was.GetOperation() != nil ||
		was.GetOwner().GetNode() == peer || now.GetOwner().GetNode() != peer {
		return nil
	}
	return s.policy.Boots(ctx, was, peer)
}

// claims reports whether a node takes a VM that has snapshots and no owner: from then on it is the one that had the
// VM last, and may restore them.
func claims(was, now *nodev1.Record, peer string) bool {
	return len(was.GetSnapshots()) > 0 && was.GetOperation() == nil && was.GetOwner().GetNode() != peer &&
		now.GetOwner().GetNode() == peer
}

// place refuses an operation whose snapshot would lie where the VM's do not: the node that deletes it later does so
// with credentials of its own.
func (s *Service) place(ctx context.Context, was *nodev1.Record, op *nodev1.Operation, peer string) error {
	repository := op.GetRepository()
	if op.GetPrefix() != "" && op.GetPrefix() != was.GetPrefix() && op.GetId() != was.GetOperation().GetId() {
		if s.policy.Places != nil {
			return s.policy.Places(ctx, was, op, peer)
		}
		return fmt.Errorf("operation %s of VM %s/%s: prefix %q: the controller has not ordered it: %w", op.GetId(),
			op.GetVm().GetNamespace(), op.GetVm().GetId(), op.GetPrefix(), errdefs.ErrPermissionDenied)
	}
	if repository == "" || repository == was.GetOperation().GetRepository() || knows(was, op.GetKind(), repository) {
		return nil
	}
	return s.within(ctx, was, repository, fmt.Sprintf("operation %s of VM %s/%s: repository %q", op.GetId(),
		op.GetVm().GetNamespace(), op.GetVm().GetId(), repository))
}

// within refuses a repository that is not the VM's own, or does not lie below what is allowed.
func (s *Service) within(ctx context.Context, was *nodev1.Record, repository, call string) error {
	prefix, own := strings.CutSuffix(repository, "/"+was.GetUid())
	if !own || prefix == "" {
		return fmt.Errorf("%s is not the VM's own, which ends in /%s: %w", call, was.GetUid(), errdefs.ErrPermissionDenied)
	}
	if len(s.policy.Repositories) == 0 || slices.Contains(s.policy.Repositories, prefix) || prefix == was.GetPrefix() {
		return nil
	}
	old, err := s.prefixes.read(ctx, s)
	if err != nil || old[prefix] {
		return err
	}
	return fmt.Errorf("%s does not lie below one of %q: add %q to controller.repositories of the controller's "+
		"configuration if it is to: %w",
		call, s.policy.Repositories, prefix, errdefs.ErrPermissionDenied)
}

// keeps is a removal without a repository in which no operation of the VM could have stored anything.
func (s *Service) keeps(ctx context.Context, rec *nodev1.Record, req *nodev1.RemoveRequest) (*nodev1.RemoveRequest,
	error) {
	if _, remote := Peer(ctx); !remote || req.GetRepository() == "" || rec == nil {
		return req, nil
	}
	err := s.within(ctx, rec, req.GetRepository(), "remove")
	if !errdefs.IsPermissionDenied(err) {
		return req, err
	}
	req = proto.CloneOf(req)
	req.Repository = ""
	return req, nil
}

// knows reports whether a record says already that something of its VM lies there. Where one checkpoint went by an
// order, a wake may read, and nothing else is stored.
func knows(rec *nodev1.Record, kind nodev1.Kind, repository string) bool {
	in := func(ref *nodev1.SnapshotRef) bool { return ref.GetRepository() == repository }
	once := kind != nodev1.Kind_KIND_WAKE && record.IsGiven(rec, repository) && !record.Given(rec, nil, repository)
	return !once && (rec.GetRepository() == repository || slices.ContainsFunc(rec.GetSnapshots(), in))
}

// prefixes are those that records name at the first question: of before there was a policy, or of
// before it was changed. No node adds to them, and no place that was given to one VM is another's.
type prefixes struct {
	turn  turn.Turn // who reads them
	known map[string]bool
}

func (p *prefixes) read(ctx context.Context, s *Service) (map[string]bool, error) {
	if err := p.turn.Take(ctx); err != nil {
		return nil, fmt.Errorf("wait for a count of the records: %w", err)
	}
	defer p.turn.Give()
	if p.known != nil {
		return p.known, nil
	}
	all, err := s.list(ctx, "", 0)
	some := errors.As(err, new(*store.UnreadError)) // no node gets a place by a record that cannot be read
	if err != nil && !some {
		return nil, err
	}
	known := map[string]bool{}
	for _, rec := range all {
		places := []string{rec.GetRepository()}
		for _, ref := range rec.GetSnapshots() {
			places = append(places, ref.GetRepository())
		}
		for _, at := range places {
			if prefix, ok := strings.CutSuffix(at, "/"+rec.GetUid()); ok && !record.IsGiven(rec, at) {
				known[prefix] = true
			}
		}
	}
	if !some {
		p.known = known
	}
	return known, nil
}
