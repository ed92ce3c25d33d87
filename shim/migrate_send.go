package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/snapshot/worker"
)

// sending is one worker that sends the VM to its destination.
type sending struct {
	vm      *VM
	c       *capture
	offered *offered
	live    *livePause
	out     *machinev1.SendResponse
	noting  errgroup.Group // what is written down while the destination loads the state
}

// stream sends the VM while it runs, and then the rest in a pause.
func (c *capture) stream() (string, error) {
	vm := c.vm
	vm.mu.Lock()
	o := vm.op.offered
	vm.mu.Unlock()
	if o == nil || !sameRef(o.ref, c.ref) {
		return "", fmt.Errorf("no certificate was offered for attempt %d of operation %s, or by a shim that is gone: call "+
			"Offer: %w", c.ref.GetAttempt(), c.ref.GetOperation(), errdefs.ErrFailedPrecondition)
	}
	if c.endExecs {
		vm.ending.endExecs(c.ctx)
	}
	err := vm.write(func(j *journal.Journal) {
		j.BeginSending(c.ref.GetOperation(), c.ref.GetAttempt(), c.ref.GetGeneration(), c.silenceBound())
		j.Move = true
	})
	if err != nil {
		return "", err
	}
	// The destination has made its interfaces, and its network may have been told that the VM is there.
	go vm.nic.announce(c.ctx)
	state, err := memoryFile("state")
	if err != nil {
		return "", err
	}
	defer state.Close()
	s := &livePause{vm: vm, c: c, state: state}
	out := &machinev1.SendResponse{}
	sent, err := (&sending{vm: vm, c: c, offered: o, live: s, out: out}).send()
	if err != nil {
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

// saveDigest writes down what was sent: should the VM end with its shim before the vote, the
// destination's word on it is still good for one.
func (s *sending) saveDigest(digest string) error {
	vm, ref := s.vm, s.c.ref
	return vm.journal.Update(func(j *journal.Journal) error {
		if j.Phase != journal.Sending || j.Operation != ref.GetOperation() || j.Attempt != ref.GetAttempt() {
			return fmt.Errorf("VM %s is %s here: %w", vm.id, j.Phase, errdefs.ErrFailedPrecondition)
		}
		j.Digest = digest
		return nil
	})
}

// transmit hands the VM's files to a worker.
func (s *sending) transmit() (snapshot.Sent, error) {
	vm, c := s.vm, s.c
	j, cfg := vm.journal.Load(), vm.host.Config
	files := &openFiles{}
	defer files.close()
	job := worker.SendJob{
		Live: &boundedPause{s.live}, Budget: pauseBudget(cfg, c.send.GetDowntimeMs()), Address: c.send.GetAddress(),
		Bandwidth: int64(cfg.Worker.Bandwidth),
		Ends:      stream.Ends{Own: s.offered.identity, Peer: c.send.GetCertificate(), Channel: c.send.GetChannel()},
		Ref:       refOf(vm, c.ref, j),
		State:     worker.Open(s.live.state), Ended: s.ended,
	}
	if b := c.send.GetBandwidth(); b > 0 {
		job.Bandwidth = int64(b)
	}
	var err error
	if job.Spaces, job.Disks, err = openSource(j, files); err != nil {
		return snapshot.Sent{}, err
	}
	s.live.noteDisks(c.ctx, job.Spaces, job.Budget, files)
	if job.Table, err = openTable(j, files); err != nil {
		return snapshot.Sent{}, err
	}
	job.Tracking, s.out.Tracking, s.out.Untracked = vm.tracking.open(c.ctx, job.Spaces[0].File.File, files)
	ctx, cancel := context.WithCancelCause(c.ctx)
	watched, end := context.WithCancel(ctx)
	defer end()
	go s.live.watch(watched, cancel)
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

// boundedPause is a VM that does not stand still for longer than an abort may take, unless its
// controller votes.
type boundedPause struct{ *livePause }

func (h *boundedPause) Pause(ctx context.Context) error {
	err := h.livePause.Pause(ctx)
	h.c.deadline.Reset(time.Duration(h.vm.host.Config.Timeouts.Abort))
	return err
}

// send returns when the destination has loaded the VM, and the journal says what was sent.
func (s *sending) send() (snapshot.Sent, error) {
	sent, err := s.transmit()
	noted := s.noting.Wait()
	if err == nil && noted == nil && s.vm.journal.Load().Digest != sent.Digest {
		noted = s.saveDigest(sent.Digest)
	}
	return sent, errors.Join(err, noted)
}

// ended is called when the destination has all of the VM, and loads it.
func (s *sending) ended(digest string) {
	s.noting.Go(func() error {
		err := s.saveDigest(digest)
		if err == nil {
			s.vm.prewrite((*journal.Journal).Prepare)
		}
		return err
	})
	s.noting.Go(func() error { s.stopVMM(); return nil })
}

// stopVMM does what of a vote can be taken back. What fails is the vote's to do again.
func (s *sending) stopVMM() {
	ctx, cancel := context.WithTimeout(s.c.ctx, prepareBound)
	defer cancel()
	if err := s.c.stopVMM(ctx); err != nil {
		s.vm.log.Warn("stop the VMM before the vote", "error", err)
	}
}
