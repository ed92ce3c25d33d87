package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rampool"
)

// machineService is godwit.machine.v1 for the VM that find answers.
type machineService struct {
	find func() (*VM, error)
}

func ask[R any](m *machineService, fn func(*VM) (R, error)) (R, error) {
	vm, err := m.find()
	var r R
	if err == nil && vm.owner.gone() {
		err = fmt.Errorf("task is not created: %w", errdefs.ErrNotFound)
	}
	if err == nil {
		r, err = fn(vm)
	}
	return r, toGRPC(err)
}

// Query answers at any time.
func (m *machineService) Query(context.Context, *machinev1.QueryRequest) (*machinev1.QueryResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.QueryResponse, error) {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		j := vm.journal.Load()
		r := &machinev1.QueryResponse{
			Namespace: vm.namespace, Id: vm.id, State: string(vm.state), Record: string(j.Phase), Generation: j.Generation,
			Digest: j.Digest, Resident: rampool.Resident(j.RAM), Network: vm.nic.connection(), Progress: vm.op.progress.get(),
			TaskPid: vm.owner.pid(), Enrolls: vm.host.Records != nil,
			Adopted: vm.origin.adopted, CreatedUnixNano: j.Created,
		}
		if f := vm.postcopy.filling(); f != nil {
			r.Restore = f.text()
		}
		if j.Restored != nil {
			r.RestoreMode, r.RestoreReason = j.Restored.Mode, j.Restored.Reason
		}
		switch {
		case vm.op.capture.isGolden():
			r.Record = string(journal.Own)
		case j.Operation != "":
			r.Ref = &machinev1.Ref{Operation: j.Operation, Attempt: j.Attempt, Generation: j.Generation}
		}
		if s := j.Spec; s != nil {
			r.Uid, r.Vmm, r.Memory, r.Vcpus, r.Kernel = s.UID, s.VMM.Name, s.Memory, uint32(s.VCPUs), s.Kernel.Digest
			if c := s.Container; c != nil && s.Disk(c.Writable) != nil {
				r.WritableBytes = uint64(s.Disk(c.Writable).Size)
			}
			for _, n := range s.NICs {
				for _, a := range n.Addresses {
					r.Addresses = append(r.Addresses, a.String())
				}
			}
		}
		if j.Process != nil && vm.state != Stopped {
			r.VmmPid = uint32(j.Process.PID)
		}
		for _, p := range vm.execs() {
			if p.runs() {
				r.Execs++
			}
		}
		r.VmmVersion, r.Ended, r.Tracking = vm.vmm.facts().Version, vm.vmm.reason(), vm.tracking.known()
		if vm.pod.restores() {
			r.Missing = vm.pod.missing()
		}
		if err := vm.journal.Unwritten(); err != nil {
			r.Unwritten = err.Error()
		}
		if !vm.origin.resumed.IsZero() {
			r.ResumedUnixNano = vm.origin.resumed.UnixNano()
		}
		return r, nil
	})
}

// Capture makes the snapshot, or waits for the one that this attempt has begun.
func (m *machineService) Capture(ctx context.Context, r *machinev1.CaptureRequest) (*machinev1.CaptureResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.CaptureResponse, error) {
		if r.GetRepository() == "" {
			return nil, fmt.Errorf("capture VM %s: a repository is needed: %w", vm.id, errdefs.ErrInvalidArgument)
		}
		c, err := (&capture{vm: vm, ref: r.GetRef(), endExecs: r.GetEndExecs(), execs: r.GetExecs(), req: r,
			make: (*capture).snapshot}).run(ctx)
		if err != nil {
			return nil, err
		}
		return c.resp, nil
	})
}

// Vote stops the VMM and writes PREPARED.
func (m *machineService) Vote(ctx context.Context, r *machinev1.VoteRequest) (*machinev1.VoteResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.VoteResponse, error) {
		digest, err := (&handover{vm, r.GetRef()}).prepare(ctx)
		return &machinev1.VoteResponse{Digest: digest}, err
	})
}

// Abort gives a source its VM back, and ends a destination that has never run.
func (m *machineService) Abort(ctx context.Context, r *machinev1.AbortRequest) (*machinev1.AbortResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.AbortResponse, error) { return (&handover{vm, r.GetRef()}).abort(ctx) })
}

// abort ends the attempt before it looks whether the attempt holds the VM: an order that is late takes it no more.
func (h *handover) abort(ctx context.Context) (*machinev1.AbortResponse, error) {
	vm, ref := h.vm, h.ref
	vm.op.aborted.add(ref)
	vm.mu.Lock()
	c, j, state, upload := vm.op.capture, vm.journal.Load(), vm.state, vm.op.upload
	vm.mu.Unlock()
	switch {
	case upload != nil && sameRef(upload.ref, ref):
		if err := upload.cancelUpload(ctx); err != nil {
			return nil, err
		}
	case c != nil && sameRef(c.ref, ref):
		if err := c.abort(Captured, Prepared); err != nil {
			return nil, err
		}
	case c != nil:
		return nil, fmt.Errorf("abort operation %s: %s holds VM %s: %w", ref.GetOperation(), c.ref.GetOperation(), vm.id,
			errdefs.ErrFailedPrecondition)
	case state == Created && (j.Phase == journal.Ready || j.Phase == journal.Incoming) &&
		j.Operation == ref.GetOperation() && j.Attempt == ref.GetAttempt():
		if !vm.endCreated(ctx, killed) {
			return nil, fmt.Errorf("abort operation %s: VM %s starts, or ends: %w", ref.GetOperation(), vm.id,
				errdefs.ErrFailedPrecondition)
		}
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return &machinev1.AbortResponse{State: string(vm.state)}, nil
}

// Release ends the VM after the commit.
func (m *machineService) Release(ctx context.Context, r *machinev1.ReleaseRequest) (*machinev1.ReleaseResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.ReleaseResponse, error) {
		return &machinev1.ReleaseResponse{}, (&handover{vm, r.GetRef()}).release(ctx, r.GetDigest(), r.GetMoved())
	})
}

// End ends an adopted VM that is not wanted any more, or that is another owner's by its record. All others are
// containerd's to end.
func (m *machineService) End(ctx context.Context, r *machinev1.EndRequest) (*machinev1.EndResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.EndResponse, error) {
		if g := r.GetGeneration(); g > 0 {
			return &machinev1.EndResponse{}, vm.fenceLost(ctx, g, r.GetReason())
		}
		vm.mu.Lock()
		err := vm.mutable()
		if err == nil && !vm.origin.adopted {
			err = fmt.Errorf("end VM %s: containerd has its task: %w", vm.id, errdefs.ErrFailedPrecondition)
		}
		vm.mu.Unlock()
		if err != nil {
			return nil, err
		}
		vm.log.Info("end an adopted VM whose container is gone")
		vm.ending.end(context.WithoutCancel(ctx), killed, time.Now())
		return &machinev1.EndResponse{}, nil
	})
}

// Tell has the workload see that a snapshot is durable.
func (m *machineService) Tell(ctx context.Context, r *machinev1.TellRequest) (*machinev1.TellResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.TellResponse, error) {
		return &machinev1.TellResponse{}, word{vm}.tell(ctx, r)
	})
}
