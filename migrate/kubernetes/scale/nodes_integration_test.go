//go:build integration

package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/kubernetes/store"
	service "godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/pki"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// nodeErrors are what calls of nodes were answered.
type nodeErrors struct {
	mu  sync.Mutex
	all []error
}

func (e *nodeErrors) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, err)
}

// take answers what there is, and forgets it.
func (e *nodeErrors) take() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	return all
}

// node is a godwitd whose shims are fake: its VMs run and do nothing. Its rounds and heartbeats are the real ones.
type node struct {
	name    string
	records *record.Client
	errors  *nodeErrors

	mu  sync.Mutex
	vms map[string]*nodev1.Record // as they were claimed, by id
}

// join makes a node with a certificate of its own.
func (f *fleet) join(_ context.Context, authority *pki.Authority, name string) (*node, error) {
	dir := f.path("pki", name)
	csr, err := pki.Request(dir, name, []string{"127.0.0.1"})
	if err != nil {
		return nil, err
	}
	chain, err := authority.Sign(csr, name)
	if err != nil {
		return nil, err
	}
	if err := pki.Install(dir, name, chain); err != nil {
		return nil, err
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		return nil, err
	}
	return &node{name: name, errors: &f.errors,
		records: record.RemoteFrom(nil, []string{f.listen}, id.Client()), vms: map[string]*nodev1.Record{}}, nil
}

// run the loops of a godwitd until ctx ends.
func (n *node) run(ctx context.Context) {
	e := engine.New(engine.Parts{Records: n.records, Observer: n}, engine.Options{Node: n.name})
	var loops sync.WaitGroup
	loops.Go(func() { service.Live(ctx, moves.Over(n.records), n) })
	loops.Go(func() {
		engine.RunPeriodically(ctx, []engine.Work{{Name: "round", Do: func(ctx context.Context) error {
			err := e.Round(ctx, n.list)
			if err != nil && ctx.Err() == nil {
				n.errors.add(fmt.Errorf("round of %s: %w", n.name, err))
			}
			return err
		}}})
	})
	loops.Wait()
	e.Close()
	_ = n.records.Close()
}

// claim is a shim that boots a VM.
func (n *node) claim(ctx context.Context, id string) error {
	vm := &nodev1.VM{Namespace: store.Kubernetes, Id: id}
	rec, err := n.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil {
		return err
	}
	if rec.GetOwner() == nil {
		rec, err = n.records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: n.name, Generation: rec.GetGeneration(),
			Uid: rec.GetUid()})
		if err != nil {
			return err
		}
	}
	if rec.GetOwner().GetNode() == n.name {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.vms[id] = rec
	}
	return nil
}

func (n *node) has(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.vms[id] != nil
}

// list is what engine.Round asks for.
func (n *node) list() (all []*nodev1.VM, _ error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, rec := range n.vms {
		all = append(all, rec.GetVm())
	}
	return all, nil
}

// Query implements engine.Observer.
func (n *node) Query(_ context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rec := n.vms[vm.GetId()]
	if rec == nil {
		return nil, errdefs.ErrUnavailable
	}
	return &machinev1.QueryResponse{Record: "OWN", State: "running", Uid: rec.GetUid(),
		Generation: rec.GetGeneration()}, nil
}

// Self implements moves.Speaker.
func (n *node) Self() *nodev1.NodeInfo {
	return &nodev1.NodeInfo{Name: n.name, Version: "scale", Execs: true, RamBytes: 64 << 30,
		FreeBytes: 32<<30 - rand.Uint64N(1<<30)} // each time another number
}

// Untold implements moves.Speaker.
func (*node) Untold() []*nodev1.MoveEvent { return nil }

// Told implements moves.Speaker.
func (*node) Told(int) {}

// Heard implements moves.Speaker.
func (*node) Heard(context.Context, *nodev1.AnnounceResponse) error { return nil }
