package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
)

// capture is one operation's hold on the VM, from the freeze to Abort or Release.
type capture struct {
	vm       *VM
	ref      *machinev1.Ref
	endExecs bool
	execs    bool                      // that run go along
	req      *machinev1.CaptureRequest // of a snapshot
	send     *machinev1.SendRequest    // of a live move
	make     func(*capture) (digest string, err error)
	// silence that it bears: of the shim that died, whose successor this one's is; 0: there was none
	inherited  time.Duration
	reverted   atomic.Uint64   // the generation under which a revert gives the VM back
	ctx        context.Context // of the work; Abort ends it
	cancel     context.CancelFunc
	deadline   *time.Timer   // after it the VM resumes itself, unless it has voted
	done       chan struct{} // closed when what follows stands
	digest     string        // of what was made; empty: nothing was
	resp       *machinev1.CaptureResponse
	sent       *machinev1.SendResponse
	endWorker  func(context.Context) error // ends the worker that has sent the VM; nil: there is none
	err        error
	linksDown  bool         // of its NICs: set after done, or by what closes it
	gone       time.Time    // a checkpoint's VM went on
	armed      bool         // the kernel has noted what was written since the page table was made
	untabled   bool         // of a checkpoint: it has no page table
	noting     *vmm.Process // of a checkpoint: the kernel notes what that one writes since the pause; nil: it does not
	saved      bool         // the device state is saved: the VMM is not needed any more; vm.mu guards it
	stdioFixed bool         // what goes along of stdio is written down; vm.mu guards it
}

func sameRef(a, b *machinev1.Ref) bool {
	return a.GetOperation() == b.GetOperation() && a.GetAttempt() == b.GetAttempt() &&
		a.GetGeneration() == b.GetGeneration()
}

// hold gives the VM to the operation, or answers the hold that it has already.
func (c *capture) hold() (*capture, bool, error) {
	vm := c.vm
	if err := smallPages(vm.host.Config.RAMDir); err != nil {
		return nil, false, fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if has, err := c.mayHold(); has != nil || err != nil {
		return has, false, err
	}
	if err := vm.setState(Capturing); err != nil {
		return nil, false, err
	}
	c.done = make(chan struct{})
	bound := vm.host.operationBound(max(c.req.GetTimeoutMs(), c.send.GetTimeoutMs()))
	if c.req.GetCheckpoint() { // what is left when the VM goes on ends as well
		c.ctx, c.cancel = context.WithTimeout(vm.life, bound)
	} else {
		c.ctx, c.cancel = context.WithCancel(vm.life)
	}
	c.deadline = time.AfterFunc(bound, func() { c.expire() }) // it calls cancel
	vm.op.capture, vm.op.upload = c, nil
	return c, true, nil
}

// mayHold answers the hold that the operation has already, or nil where it may have one.
// vm.mu is held.
func (c *capture) mayHold() (*capture, error) {
	vm := c.vm
	if has := vm.op.upload; has != nil && sameRef(has.ref, c.ref) {
		return has, nil
	}
	if has := vm.op.capture; has != nil && (vm.isHeld() || vm.state == Stopped) {
		if sameRef(has.ref, c.ref) && (has.send == nil) == (c.send == nil) {
			return has, nil
		}
		return nil, fmt.Errorf("capture VM %s: operation %s holds it: %w", vm.id, has.ref.GetOperation(),
			errdefs.ErrFailedPrecondition)
	}
	if err := vm.pod.leavable(); err != nil {
		return nil, fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	if vm.postcopy.filling() != nil {
		return nil, fmt.Errorf("capture VM %s: its RAM still comes: %w", vm.id, errBusy)
	}
	if err := c.capturable(); err != nil {
		return nil, fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	return nil, nil
}

// operationBound is what an operation may take here: the time that its order gives it, or the
// node's.
func (h *Host) operationBound(ms int64) time.Duration {
	if ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return time.Duration(h.Config.Timeouts.Operation)
}

// stateRemedy for a state that is in the way.
var stateRemedy = map[State]string{Paused: "; let it run first (ctr task resume)"}

// under refuses an operation of another claim than the one that the VM runs under. A VM without a record
// has none: it takes that of its first operation (BeginSending), before which its record was made.
func (vm *VM) under(ref *machinev1.Ref) error {
	runs := vm.journal.Load().Generation
	if vm.host.Records == nil || runs == 0 || runs == ref.GetGeneration() {
		return nil
	}
	return fmt.Errorf("generation %d is stale, the VM runs under %d: %w", ref.GetGeneration(), runs,
		errdefs.ErrFailedPrecondition)
}

// capturable is the preflight: it names what is in the way and changes nothing. vm.mu
// is held.
func (c *capture) capturable() error {
	vm, ref, req, execs := c.vm, c.ref, c.req, c.endExecs || c.execs
	switch {
	case ref.GetOperation() == "":
		return fmt.Errorf("an operation is needed: %w", errdefs.ErrInvalidArgument)
	case vm.op.aborted.has(ref):
		return fmt.Errorf("attempt %d of operation %s is over: %w", ref.GetAttempt(), ref.GetOperation(), errdefs.ErrAborted)
	case vm.state != Running && !req.GetPaused():
		return fmt.Errorf("it is %s, not running%s: %w", vm.state, stateRemedy[vm.state], vm.wrongState())
	case vm.op.calls > 0:
		return fmt.Errorf("a call of containerd changes it: %w", errBusy)
	}
	if err := vm.pod.removals.over(); err != nil {
		return err
	}
	for _, t := range vm.tasks {
		if err := t.capturable(); err != nil {
			return err
		}
	}
	if err := vm.under(ref); err != nil {
		return err
	}
	if err := c.checkpointable(); err != nil {
		return err
	}
	for _, p := range vm.execs() {
		if p.starting != nil || !p.started && !p.exited && !req.GetCheckpoint() {
			return fmt.Errorf("exec %s is being created: %w", p.id, errBusy)
		}
		if !p.exited && !execs && !req.GetCheckpoint() {
			return fmt.Errorf("exec %s runs: end it, or have execs ended (--end-execs): %w", p.id, vm.pod.execRuns())
		}
	}
	return nil
}

// capturable names what of one task is in the way of an operation; vm.mu is held.
func (t *Task) capturable() error {
	switch {
	case len(t.orphans) > 0:
		return fmt.Errorf("the start of exec %s was given up, and the guest has yet to end it%s: %w", t.orphans[0].id,
			stateRemedy[t.vm.state], errBusy)
	case t.member != nil:
		return t.member.capturable()
	case t.init.exited || !t.init.started:
		return fmt.Errorf("it has no init: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// work makes the snapshot, or sends the VM. Whatever fails, the VM runs on.
func (c *capture) work() {
	vm := c.vm
	defer close(c.done)
	digest, err := c.make(c)
	if c.req.GetCheckpoint() {
		c.keepTable(err == nil)
		c.cancel() // the timer's
	}
	if err != nil {
		err = fmt.Errorf("capture VM %s: %w", vm.id, c.cause(err))
		vm.log.Error("capture", "error", err)
		vm.socket.answering.Store(errors.Is(err, errEarly)) // before its hold is gone
		if e := vm.enterFrom(Capturing, Aborting); e == nil {
			err = errors.Join(err, c.resume(Capturing, true))
		} else if vm.inState(Stopped) {
			c.deadline.Stop()
			err = errors.Join(err, c.endDead(false))
		}
		c.err = err
		return
	}
	c.digest = digest
	if c.req.GetCheckpoint() {
		vm.op.progress.clear()
		vm.notices.add(digest)
		return
	}
	vm.leave(Capturing, Captured)
}

// snapshot pushes what the VM is, while it runs and then in a pause.
func (c *capture) snapshot() (string, error) {
	vm := c.vm
	if c.endExecs {
		vm.ending.endExecs(c.ctx)
	}
	err := vm.write(func(j *journal.Journal) {
		c.armed = j.Armed
		j.BeginSending(c.ref.GetOperation(), c.ref.GetAttempt(), c.ref.GetGeneration(), c.silenceBound())
		j.Repository = c.req.GetRepository()
	})
	if err != nil {
		return "", err
	}
	state, err := memoryFile("state")
	if err != nil {
		return "", err
	}
	s := &livePause{vm: vm, c: c, paused: c.req.GetPaused(), state: state}
	defer s.state.Close()
	out := &machinev1.CaptureResponse{}
	receipt, err := (&pushing{vm: vm, c: c, live: s, files: &openFiles{}, out: out}).push()
	if err != nil {
		return "", err
	}
	if !c.req.GetCheckpoint() {
		if err := vm.write(func(j *journal.Journal) { j.Digest = receipt.Digest.String() }); err != nil {
			return "", err
		}
	}
	f := receipt.Figures
	out.Digest, out.DurableMs = receipt.Digest.String(), ms(receipt.Durable.Sub(receipt.Captured))
	out.PauseMs, out.StopMs, out.SaveMs = ms(receipt.Captured.Sub(s.begun)), ms(s.stopped.Sub(s.begun)),
		ms(s.saved.Sub(s.stopped))
	out.RamBytes, out.ResidentBytes, out.PushedBytes, out.TotalBytes, out.DeadBytes = f.RAM, f.Resident, f.Pushed, f.Total,
		receipt.Dead
	out.InsideBytes, out.Notes = receipt.Inside, disksInPause(receipt.Disks)
	if !c.gone.IsZero() {
		out.PauseMs, out.GoneOn = ms(c.gone.Sub(s.begun)), true
	}
	out.Passes = passesOf(receipt.Passes)
	vm.log.Info("snapshot is durable", "digest", receipt.Digest, "resident", f.Resident, "new", f.New, "moved",
		receipt.Moved, "again", receipt.Again,
		"pushed", f.Pushed, "golden", c.req.GetGolden())
	if receipt.Orphaned != "" {
		vm.log.Warn("the page table is not used: all pages are pushed", "reason", receipt.Orphaned)
	}
	if receipt.Untabled != "" {
		c.untabled = true
		vm.log.Warn("no page table could be kept: the next snapshot pushes all pages", "reason", receipt.Untabled)
	}
	if receipt.Ungolden != "" {
		vm.log.Warn("golden snapshot is not used", "digest", c.req.GetGolden(), "reason", receipt.Ungolden)
	}
	if receipt.Untracked != "" {
		out.Tracking, out.Untracked = string(track.Content), receipt.Untracked
		vm.log.Warn("the tracker failed: all pages were compared in the pause", "error", receipt.Untracked)
	}
	c.resp = out
	return out.GetDigest(), nil
}

// memoryFile is one that no directory has.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make %s file: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func passesOf(all []snapshot.Pass) (out []*machinev1.CapturePass) {
	for _, p := range all {
		out = append(out, &machinev1.CapturePass{LookedBytes: p.Looked, SentBytes: p.Sent, LeftBytes: p.Left, Ms: p.MS})
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// run begins what c is for, or waits for what the same attempt has begun, and answers that one.
func (c *capture) run(ctx context.Context) (*capture, error) {
	vm := c.vm
	var held *capture
	var fresh bool
	if err := vm.postcopy.await(ctx,
		vm.host.operationBound(max(c.req.GetTimeoutMs(), c.send.GetTimeoutMs()))); err != nil {
		return nil, err
	}
	if err := c.prepared(ctx); err != nil {
		return nil, err
	}
	err := whileBusy(ctx, func() (err error) { held, fresh, err = c.hold(); return err })
	if err != nil {
		return nil, err
	}
	if fresh {
		go held.work()
	}
	select {
	case <-held.done:
		return held, held.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
