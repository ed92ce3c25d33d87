package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot/worker"
)

// nextFile becomes the page table when the snapshot stands that it is of.
func nextFile(j *journal.Journal) string { return tableFile(j) + ".next" }

// finishedFile says what the store has of pushes that failed.
func finishedFile(j *journal.Journal) string { return tableFile(j) + ".finished" }

// openFinished answers nil where there can be none: the next push after one that fails sends
// all again then.
func (p *pushing) openFinished(j *journal.Journal) *worker.File {
	f, err := p.files.open(finishedFile(j), os.O_CREATE|os.O_RDWR)
	if err != nil {
		p.vm.log.Warn("what this push finishes is not kept for another", "error", err)
		return nil
	}
	return worker.Open(f)
}

// removeTables removes what is known of a VM's pages. Builds before had it in the directory of the RAM.
func removeTables(j *journal.Journal) error {
	var errs []error
	for _, name := range []string{".table", ".table.next", ".table.finished"} {
		if j.RAM != "" {
			errs = append(errs, removeFile(j.RAM+name))
		}
	}
	if j.RunDir != "" {
		errs = append(errs, removeFile(tableFile(j)), removeFile(nextFile(j)), removeFile(finishedFile(j)))
	}
	return errors.Join(errs...)
}

// openNext makes the file of the table for the snapshot after a checkpoint: the VM goes on,
// and no restore makes one.
func openNext(j *journal.Journal, files *openFiles) (*worker.File, error) {
	f, err := files.open(nextFile(j), os.O_CREATE|os.O_RDWR|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	return worker.Open(f), nil
}

// keepTable makes the table of a checkpoint that stands the VM's. Without it the next
// snapshot pushes more, and no more than that.
func (c *capture) keepTable(stands bool) {
	vm, j := c.vm, c.vm.journal.Load()
	keep := func() error { return os.Rename(nextFile(j), tableFile(j)) }
	if !stands {
		keep = func() error { return removeFile(nextFile(j)) }
	}
	err := keep()
	if stands && err == nil { // what was finished of those that failed is in the table
		err = removeFile(finishedFile(j))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		vm.log.Warn("keep the page table of a checkpoint", "error", err)
	}
	c.keepNotes(stands && err == nil && !c.untabled)
}

// keepNotes says that the kernel has noted what was written since the table of the checkpoint, once
// that is the VM's: with an older table the notes would hide writes. Until then a shim that dies leaves
// none that are believed. No other operation reads them meanwhile: one is refused until the checkpoint ends.
func (c *capture) keepNotes(tabled bool) {
	vm := c.vm
	if c.noting == nil {
		return
	}
	if tabled {
		err := vm.write(func(j *journal.Journal) {
			p := j.Process
			j.Armed = j.Phase == journal.Own && j.Postcopy == nil && p != nil && p.PID == c.noting.PID &&
				p.StartTime == c.noting.StartTime
		})
		if err == nil {
			return
		}
		vm.log.Warn("keep the notes of a checkpoint: the next snapshot compares all pages", "error", err)
	}
	vm.tracking.stop()
}

// resumeVM ends the pause of a checkpoint: all that the snapshot needs has been read. What is
// left of the work needs the VM no more, and is called an upload.
func (c *capture) resumeVM() {
	vm := c.vm
	vm.mu.Lock()
	vm.op.upload, c.gone = c, time.Now()
	vm.mu.Unlock()
	c.deadline.Stop()
	if err := vm.enterFrom(Capturing, Aborting); err != nil {
		vm.log.Info("the VM of a checkpoint has ended in its pause", "error", err)
		if err := c.endDead(true); err != nil {
			vm.log.Error("end the hold of a checkpoint", "error", err)
		}
		return
	}
	var up, err error
	if !c.req.GetPaused() {
		r := c.beginResuming()
		defer r.end()
		up, err = r.retryWakeMachine()
		c.gone = time.Now()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(vm.life), time.Duration(vm.host.Config.Timeouts.Abort))
	defer cancel()
	if err != nil {
		vm.log.Error("let the VM go on after its checkpoint", "error", err)
		c.drop()
		vm.ending.endUnusable(ctx)
		return
	}
	// SENDING lets the VM run, so that the journal need not come first.
	noted := vm.write((*journal.Journal).EndOperation)
	if err := c.finishResume(ctx, noted, up); err != nil {
		vm.log.Error("let the VM go on after its checkpoint", "error", err)
	}
}

// uploading answers the checkpoint under way or past whose VM has gone on; vm.mu is held.
func (c *capture) uploading() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// checkpointable is the part of the preflight that only a checkpoint has; vm.mu is held.
func (c *capture) checkpointable() error {
	vm, paused := c.vm, c.req.GetPaused()
	switch {
	case vm.op.upload != nil && vm.op.upload.uploading():
		return fmt.Errorf("the checkpoint of operation %s is still being sent: %w", vm.op.upload.ref.GetOperation(),
			errdefs.ErrFailedPrecondition)
	case paused && vm.state != Paused:
		return fmt.Errorf("it is %s, not paused: %w", vm.state, errdefs.ErrFailedPrecondition)
	case paused && vm.journal.Load().Spec.Recycles() && vm.nic.wiring() != nil:
		return fmt.Errorf("it sleeps without its NICs, which a paused guest cannot let go: use godwit checkpoint while it "+
			"runs: %w", errdefs.ErrFailedPrecondition)
	}
	if probe, _ := vm.journal.Load().Spec.Ready(); paused && probe != nil {
		return fmt.Errorf("a paused guest does not say whether it is ready (annotation %s): use godwit checkpoint while "+
			"it runs: %w", spec.AnnotationReady, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// cancelUpload ends what is left of a checkpoint, and waits for it for as long as its caller does: the VM may be
// resumed again and again meanwhile.
func (c *capture) cancelUpload(ctx context.Context) error {
	c.cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the checkpoint of operation %s: VM %s is not there yet, ask again: %w: %w",
			c.ref.GetOperation(), c.vm.id, errdefs.ErrUnavailable, ctx.Err())
	}
}
