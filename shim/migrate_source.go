package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/stream"
)

// offered is what the source shows at its end of the stream, in one attempt.
type offered struct {
	ref      *machinev1.Ref
	identity stream.Identity
}

// Offer answers what a destination must be able to take.
func (m *machineService) Offer(ctx context.Context, r *machinev1.OfferRequest) (*machinev1.OfferResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.OfferResponse, error) { return (&offering{vm, r.GetRef()}).offer(ctx) })
}

// Send streams the VM to its destination, or waits for the stream that this attempt has
// begun.
func (m *machineService) Send(ctx context.Context, r *machinev1.SendRequest) (*machinev1.SendResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.SendResponse, error) {
		if r.GetAddress() == "" || r.GetChannel() == "" || len(r.GetCertificate()) == 0 {
			return nil, fmt.Errorf("send VM %s: address, channel and certificate of the destination are needed: %w", vm.id,
				errdefs.ErrInvalidArgument)
		}
		c, err := (&capture{vm: vm, ref: r.GetRef(), endExecs: r.GetEndExecs(), execs: r.GetExecs() && !vm.isPod(), send: r,
			make: (*capture).stream}).run(ctx)
		switch {
		case r.GetWaits() && vm.isPod() && errors.Is(err, errBusy):
			return &machinev1.SendResponse{Waits: err.Error()}, nil
		case err != nil:
			return nil, err
		}
		return c.sent, nil
	})
}

// Incoming tells how the source reaches this destination.
func (m *machineService) Incoming(_ context.Context, r *machinev1.IncomingRequest) (*machinev1.IncomingResponse,
	error) {
	return ask(m, func(vm *VM) (*machinev1.IncomingResponse, error) {
		in, err := vm.incoming(r.GetRef())
		if err == nil {
			in.Missing, err = vm.pod.missingHere(r.GetSpec())
		}
		return in, err
	})
}

// Revert gives the VM back to its source.
func (m *machineService) Revert(ctx context.Context, r *machinev1.RevertRequest) (*machinev1.RevertResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.RevertResponse, error) {
		if err := (&handover{vm, r.GetRef()}).revert(ctx, r.GetOwnerGeneration()); err != nil {
			return nil, err
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return &machinev1.RevertResponse{State: string(vm.state)}, nil
	})
}

// offering answers one question of the controller for what a move would take.
type offering struct {
	vm  *VM
	ref *machinev1.Ref
}

// offer says what the VM is and what is in the way of sending it, and makes the
// certificate of this attempt. Execs that run are no obstacle here: Send is told whether
// they go along, or end.
func (o *offering) offer(ctx context.Context) (*machinev1.OfferResponse, error) {
	vm, ref := o.vm, o.ref
	j := vm.journal.Load()
	if err := errors.Join(vm.under(ref), vm.pod.leavable()); err != nil {
		return nil, fmt.Errorf("offer VM %s: %w", vm.id, err)
	}
	driver, err := vm.driver(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return nil, err
	}
	out := &machinev1.OfferResponse{RamBytes: j.Spec.Memory, ResidentBytes: rampool.Resident(j.RAM),
		Tracking: string(vm.tracking.currentChoice(ctx).Way)}
	if out.Spec, out.Resume, err = vm.pod.offer(); err != nil {
		return nil, err
	}
	if out.Facts, err = json.Marshal(factsOf(facts, vm.host.HostKernel)); err != nil {
		return nil, err
	}
	for i, d := range j.Spec.Disks {
		if !d.ReadOnly {
			out.DiskBytes += rampool.Resident(j.Disks[i].Path)
		}
	}
	if err := smallPages(vm.host.Config.RAMDir); errdefs.IsUnavailable(err) {
		return nil, fmt.Errorf("offer VM %s: %w", vm.id, err)
	} else if err != nil {
		out.Obstacles = append(out.Obstacles, err.Error())
	}
	obstacle := whileBusy(ctx, func() error { return o.obstacle() })
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.op.aborted.has(ref) {
		return nil, fmt.Errorf("offer VM %s: attempt %d of operation %s is over: %w", vm.id, ref.GetAttempt(),
			ref.GetOperation(), errdefs.ErrAborted)
	}
	switch {
	case obstacle == nil:
	case vm.isPod() && errors.Is(obstacle, errBusy): // a move is longer than a probe
		out.Waits = obstacle.Error()
	default:
		out.Obstacles = append(out.Obstacles, obstacle.Error())
	}
	if vm.op.offered == nil || !sameRef(vm.op.offered.ref, ref) {
		identity, err := stream.NewIdentity()
		if err != nil {
			return nil, err
		}
		vm.op.offered = &offered{ref, identity}
	}
	out.Certificate = vm.op.offered.identity.Certificate
	return out, nil
}

// obstacle is what of the VM itself is in the way of a move that does not hold it yet.
func (o *offering) obstacle() error {
	vm, ref := o.vm, o.ref
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if c := vm.op.capture; c != nil && sameRef(c.ref, ref) {
		return nil
	}
	return (&capture{vm: vm, ref: ref, execs: !vm.isPod()}).capturable()
}

func refOf(vm *VM, ref *machinev1.Ref, j *journal.Journal) snapshot.Ref {
	return snapshot.Ref{
		VM: vm.namespace + "/" + vm.id, UID: j.Spec.UID, Operation: ref.GetOperation(), Attempt: ref.GetAttempt(),
		Generation: ref.GetGeneration(),
	}
}
