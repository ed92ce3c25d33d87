package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/snapshot/worker"
)

// offered is what the source shows at its end of the stream, in one attempt.
type offered struct {
	ref      *machinev1.Ref
	identity stream.Identity
}

// Offer answers what a destination must be able to take.
func (m *machineService) Offer(ctx context.Context, r *machinev1.OfferRequest) (*machinev1.OfferResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.OfferResponse, error) { return vm.offer(ctx, r.GetRef()) })
}

// Send streams the VM to its destination, or waits for the stream that this attempt has
// begun.
func (m *machineService) Send(ctx context.Context, r *machinev1.SendRequest) (*machinev1.SendResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.SendResponse, error) {
		if r.GetAddress() == "" || r.GetChannel() == "" || len(r.GetCertificate()) == 0 {
			return nil, fmt.Errorf("send VM %s: address, channel and certificate of the destination are needed: %w", vm.id, errdefs.ErrInvalidArgument)
		}
		c, err := vm.obey(ctx, &capture{ref: r.GetRef(), endExecs: r.GetEndExecs(), execs: r.GetExecs(), send: r, make: vm.stream})
		if err != nil {
			return nil, err
		}
		return c.sent, nil
	})
}

// Incoming tells how the source reaches this destination.
func (m *machineService) Incoming(_ context.Context, r *machinev1.IncomingRequest) (*machinev1.IncomingResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.IncomingResponse, error) { return vm.incoming(r.GetRef()) })
}

// Revert gives the VM back to its source.
func (m *machineService) Revert(ctx context.Context, r *machinev1.RevertRequest) (*machinev1.RevertResponse, error) {
	return ask(m, func(vm *VM) (*machinev1.RevertResponse, error) {
		if err := vm.revert(ctx, r.GetRef(), r.GetOwnerGeneration()); err != nil {
			return nil, err
		}
		vm.mu.Lock()
		defer vm.mu.Unlock()
		return &machinev1.RevertResponse{State: string(vm.state)}, nil
	})
}

// offer says what the VM is and what is in the way of sending it, and makes the
// certificate of this attempt. Execs that run are no obstacle here: Send is told whether
// they go along, or end.
func (vm *VM) offer(ctx context.Context, ref *machinev1.Ref) (*machinev1.OfferResponse, error) {
	j := vm.noted()
	if vm.host.Records != nil && ref.GetGeneration() != j.Generation {
		return nil, fmt.Errorf("offer VM %s: generation %d is stale, the VM runs under %d: %w", vm.id, ref.GetGeneration(), j.Generation, errdefs.ErrFailedPrecondition)
	}
	driver, err := vm.driver(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return nil, err
	}
	out := &machinev1.OfferResponse{RamBytes: j.Spec.Memory, ResidentBytes: rampool.Resident(j.RAM), Tracking: string(vm.way(ctx).Way)}
	if out.Spec, err = json.Marshal(j.Spec); err != nil {
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
	obstacle := quiet(ctx, func() error { return vm.obstacle(ref) })
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.op.past.has(ref) {
		return nil, fmt.Errorf("offer VM %s: attempt %d of operation %s is over: %w", vm.id, ref.GetAttempt(), ref.GetOperation(), errdefs.ErrAborted)
	}
	if obstacle != nil {
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
func (vm *VM) obstacle(ref *machinev1.Ref) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if c := vm.op.capture; c != nil && sameRef(c.ref, ref) {
		return nil
	}
	return vm.capturable(ref, nil, true)
}

// stream sends the VM while it runs, and then the rest in a pause.
func (vm *VM) stream(c *capture) (string, error) {
	vm.mu.Lock()
	o := vm.op.offered
	vm.mu.Unlock()
	if o == nil || !sameRef(o.ref, c.ref) {
		return "", fmt.Errorf("no certificate was offered for attempt %d of operation %s, or by a shim that is gone: call Offer: %w", c.ref.GetAttempt(), c.ref.GetOperation(), errdefs.ErrFailedPrecondition)
	}
	if c.endExecs {
		vm.endExecs(c.ctx)
	}
	err := vm.write(func(j *Journal) {
		j.sends(c.ref, vm.patience(c))
		j.Move = true
	})
	if err != nil {
		return "", err
	}
	state, err := memoryFile("state")
	if err != nil {
		return "", err
	}
	defer state.Close()
	s := &standing{vm: vm, c: c, state: state}
	out := &machinev1.SendResponse{}
	var noting errgroup.Group // while the destination loads it
	sent, err := vm.transmit(c, s, o, out, func(digest string) {
		noting.Go(func() error {
			err := vm.noteSent(c.ref, digest)
			if err == nil {
				vm.foresee((*Journal).prepares)
			}
			return err
		})
		noting.Go(func() error { vm.foreseePrepare(c); return nil })
	})
	noted := noting.Wait()
	if err == nil && noted == nil && vm.noted().Digest != sent.Digest {
		noted = vm.noteSent(c.ref, sent.Digest)
	}
	if err = errors.Join(err, noted); err != nil {
		c.cancel() // of a worker that has sent the VM, too: it runs on
		return "", err
	}
	out.Digest, out.RamBytes, out.ResidentBytes, out.MovedBytes = sent.Digest, sent.RAM, sent.Resident, sent.Moved
	// The VM stands still for the record too.
	out.PauseMs, out.ReadyMs = ms(sent.Captured.Sub(s.begun)), ms(time.Since(sent.Captured))
	out.StopMs, out.SaveMs = ms(s.stopped.Sub(s.begun)), ms(s.saved.Sub(s.stopped))
	out.Passes = passesOf(sent.Passes)
	if sent.Untracked != "" {
		out.Untracked = sent.Untracked
		vm.log.Warn("the tracker failed: all pages were compared in the pause", "error", sent.Untracked)
	}
	vm.log.Info("VM sent", "operation", c.ref.GetOperation(), "digest", sent.Digest, "bytes", sent.Moved,
		"passes", len(sent.Passes), "pause_ms", out.GetPauseMs(), "ready_ms", out.GetReadyMs())
	c.sent = out
	return sent.Digest, nil
}

// foreseePrepare does what of a vote can be taken back. What fails is the vote's to do again.
func (vm *VM) foreseePrepare(c *capture) {
	ctx, cancel := context.WithTimeout(c.ctx, voteBound)
	defer cancel()
	if err := vm.hush(ctx, c); err != nil {
		vm.log.Warn("stop the VMM ahead of the vote", "error", err)
	}
}

// noteSent writes down what was sent: should the VM end with its shim before the vote, the
// destination's word on it is still good for one.
func (vm *VM) noteSent(ref *machinev1.Ref, digest string) error {
	return vm.update(func(j *Journal) error {
		if j.Phase != Sending || j.Operation != ref.GetOperation() || j.Attempt != ref.GetAttempt() {
			return fmt.Errorf("VM %s is %s here: %w", vm.id, j.Phase, errdefs.ErrFailedPrecondition)
		}
		j.Digest = digest
		return nil
	})
}

// transmit hands the VM's files to a worker.
func (vm *VM) transmit(c *capture, s *standing, o *offered, out *machinev1.SendResponse, ended func(digest string)) (snapshot.Sent, error) {
	j, cfg := vm.noted(), vm.host.Config
	files := &openFiles{}
	defer files.close()
	job := worker.SendJob{
		Live: &hurried{s}, Budget: vm.budget(c.send.GetDowntimeMs()), Address: c.send.GetAddress(), Bandwidth: int64(cfg.Worker.Bandwidth),
		Ends:  stream.Ends{Own: o.identity, Peer: c.send.GetCertificate(), Channel: c.send.GetChannel()},
		Ref:   refOf(vm, c.ref, j),
		State: worker.Open(s.state), Ended: ended,
	}
	if b := c.send.GetBandwidth(); b > 0 {
		job.Bandwidth = int64(b)
	}
	var err error
	if job.Spaces, job.Disks, err = openSource(j, files); err != nil {
		return snapshot.Sent{}, err
	}
	if job.Table, err = openTable(j, files); err != nil {
		return snapshot.Sent{}, err
	}
	job.Tracking, out.Tracking, out.Untracked = vm.track(c.ctx, job.Spaces[0].File.File, files)
	ctx, cancel := context.WithCancelCause(c.ctx)
	watched, end := context.WithCancel(ctx)
	defer end()
	go s.watch(watched, cancel)
	over := make(chan struct{})
	job.Over = func() { close(over) }
	sent, err := vm.host.Snapshots(j.Cgroup).Send(ctx, job, vm.op.progress.note)
	if err != nil {
		cancel(nil)
		return sent, err
	}
	// It keeps the VM's memory mapped: to let go of it takes a core that the hand-over wants.
	c.endWorker = func(ctx context.Context) error {
		cancel(nil)
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("the worker that has sent VM %s does not end: %w", vm.id, ctx.Err())
		}
	}
	return sent, nil
}

func refOf(vm *VM, ref *machinev1.Ref, j *Journal) snapshot.Ref {
	return snapshot.Ref{
		VM: vm.namespace + "/" + vm.id, UID: j.Spec.UID, Operation: ref.GetOperation(), Attempt: ref.GetAttempt(), Generation: ref.GetGeneration(),
	}
}

// hurried is a VM that does not stand still for longer than an abort may take, unless its
// controller votes.
type hurried struct{ *standing }

func (h *hurried) Pause(ctx context.Context) error {
	err := h.standing.Pause(ctx)
	h.c.deadline.Reset(time.Duration(h.vm.host.Config.Timeouts.Abort))
	return err
}

// revert gives the VM back after the destination has fenced itself: the record says that
// it is this node's again, under a new generation.
func (vm *VM) revert(ctx context.Context, ref *machinev1.Ref, generation uint64) error {
	vm.mu.Lock()
	j := vm.journal
	if vm.op.capture == nil && j.Phase == Own && j.Generation == generation && generation > ref.GetGeneration() {
		dead := vm.state == Stopped
		vm.mu.Unlock()
		if dead {
			return vm.died()
		}
		return nil // done before
	}
	c, err := vm.held("revert", ref)
	if err == nil && j.Phase != Prepared {
		err = fmt.Errorf("revert VM %s: it is %s, and has not voted: %w", vm.id, j.Phase, errdefs.ErrFailedPrecondition)
	}
	vm.mu.Unlock()
	if err == nil {
		err = vm.reverted(ctx, ref, generation)
	}
	if err != nil {
		return err
	}
	c.reverted.Store(generation)
	err = vm.abort(c, Voted)
	if vm.is(Stopped) {
		return errors.Join(vm.died(), err)
	}
	return err
}

// died is the honest word of a source that has its VM back and cannot run it.
func (vm *VM) died() error {
	return fmt.Errorf("revert VM %s: it ended at its source: %w", vm.id, errdefs.ErrDataLoss)
}

// reverted wants the record's word, as a thaw on a wrong one would be a second VM. A
// generation that is not behind the commit's is none of a revert.
func (vm *VM) reverted(ctx context.Context, ref *machinev1.Ref, generation uint64) error {
	if generation <= ref.GetGeneration()+1 {
		return fmt.Errorf("revert VM %s: generation %d is not behind a commit of operation %s: %w", vm.id, generation, ref.GetOperation(), errdefs.ErrFailedPrecondition)
	}
	if vm.host.Records == nil {
		return fmt.Errorf("revert VM %s: this node keeps no records: %w", vm.id, errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(vm.host.Config.Timeouts.Daemon))
	defer cancel()
	rec, err := vm.host.Records.Get(ctx, &nodev1.GetRequest{Vm: vm.name()})
	if err != nil {
		return unavailable(err)
	}
	if rec.GetOwner().GetNode() != vm.host.Config.Node || rec.GetGeneration() != generation {
		return fmt.Errorf("revert VM %s to generation %d: its record has owner %v at %d: %w", vm.id, generation, rec.GetOwner(), rec.GetGeneration(), errdefs.ErrFailedPrecondition)
	}
	return nil
}
