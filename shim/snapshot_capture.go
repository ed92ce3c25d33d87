package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/snapshot/worker"
)

// capture is one operation's hold on the VM, from the freeze to Abort or Release.
type capture struct {
	ref       *machinev1.Ref
	endExecs  bool
	execs     bool                      // that run go along
	req       *machinev1.CaptureRequest // of a snapshot
	send      *machinev1.SendRequest    // of a live move
	make      func(*capture) (digest string, err error)
	patience  time.Duration   // of the shim that died, whose successor this one's is; 0: there was none
	reverted  atomic.Uint64   // the generation under which a revert gives the VM back
	ctx       context.Context // of the work; Abort ends it
	cancel    context.CancelFunc
	deadline  *time.Timer   // after it the VM thaws itself, unless it has voted
	done      chan struct{} // closed when what follows stands
	digest    string        // of what was made; empty: nothing was
	resp      *machinev1.CaptureResponse
	sent      *machinev1.SendResponse
	endWorker func(context.Context) error // ends the worker that has sent the VM; nil: there is none
	err       error
	hushed    bool      // the NICs are down: behind done, or by who closes it
	gone      time.Time // a checkpoint's VM went on
	armed     bool      // the kernel has noted what was written since the page table was made
	whole     bool      // the device state is saved: the VMM is not needed any more; vm.mu guards it
	fixed     bool      // what goes along of stdio is written down; vm.mu guards it
}

func sameRef(a, b *machinev1.Ref) bool {
	return a.GetOperation() == b.GetOperation() && a.GetAttempt() == b.GetAttempt() && a.GetGeneration() == b.GetGeneration()
}

// hold gives the VM to the operation of next, or answers its hold if it has it already.
func (vm *VM) hold(next *capture) (*capture, bool, error) {
	if err := smallPages(vm.host.Config.RAMDir); err != nil {
		return nil, false, fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if c, err := vm.mayHold(next); c != nil || err != nil {
		return c, false, err
	}
	if err := vm.to(Capturing); err != nil {
		return nil, false, err
	}
	c := next
	c.done = make(chan struct{})
	bound := vm.operationBound(max(c.req.GetTimeoutMs(), c.send.GetTimeoutMs()))
	c.ctx, c.cancel = context.WithCancel(vm.life)
	c.deadline = time.AfterFunc(bound, func() { vm.silent(c) })
	if c.req.GetCheckpoint() { // what is left when the VM goes on ends as well
		c.ctx, c.cancel = context.WithTimeout(vm.life, bound)
	}
	vm.op.capture, vm.op.upload = c, nil
	return c, true, nil
}

// mayHold answers the hold that the operation of next has already, or nil where it may have
// one. vm.mu is held.
func (vm *VM) mayHold(next *capture) (*capture, error) {
	if c := vm.op.upload; c != nil && sameRef(c.ref, next.ref) {
		return c, nil
	}
	if c := vm.op.capture; c != nil && (vm.frozen() || vm.state == Stopped) {
		if sameRef(c.ref, next.ref) && (c.send == nil) == (next.send == nil) {
			return c, nil
		}
		return nil, fmt.Errorf("capture VM %s: operation %s holds it: %w", vm.id, c.ref.GetOperation(), errdefs.ErrFailedPrecondition)
	}
	if vm.postcopy.fill != nil {
		return nil, fmt.Errorf("capture VM %s: its RAM still comes: %w", vm.id, errUnderWay)
	}
	if err := vm.capturable(next.ref, next.req, next.endExecs || next.execs); err != nil {
		return nil, fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	return nil, nil
}

// operationBound is what an operation may take here: the time that its order gives it, or the
// node's.
func (vm *VM) operationBound(ms int64) time.Duration {
	if ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return time.Duration(vm.host.Config.Timeouts.Operation)
}

// remedy for a state that is in the way.
var remedy = map[State]string{Paused: "; let it run first (ctr task resume)"}

// capturable is the preflight: it names what is in the way and changes nothing. vm.mu
// is held.
func (vm *VM) capturable(ref *machinev1.Ref, req *machinev1.CaptureRequest, execs bool) error {
	switch {
	case ref.GetOperation() == "":
		return fmt.Errorf("an operation is needed: %w", errdefs.ErrInvalidArgument)
	case vm.op.past.has(ref):
		return fmt.Errorf("attempt %d of operation %s is over: %w", ref.GetAttempt(), ref.GetOperation(), errdefs.ErrAborted)
	case vm.state != Running && !req.GetPaused():
		return fmt.Errorf("it is %s, not running%s: %w", vm.state, remedy[vm.state], vm.passing())
	case vm.op.calls > 0:
		return fmt.Errorf("a call of containerd changes it: %w", errUnderWay)
	}
	for _, t := range vm.tasks {
		if err := t.capturable(); err != nil {
			return err
		}
	}
	switch {
	case vm.host.Records != nil && ref.GetGeneration() != vm.journal.Generation:
		return fmt.Errorf("generation %d is stale, the VM runs under %d: %w", ref.GetGeneration(), vm.journal.Generation, errdefs.ErrFailedPrecondition)
	}
	if err := vm.checkpointable(req.GetPaused()); err != nil {
		return err
	}
	for _, p := range vm.execs() {
		if p.starting != nil || !p.started && !p.exited && !req.GetCheckpoint() {
			return fmt.Errorf("exec %s is being created: %w", p.id, errUnderWay)
		}
		if !p.exited && !execs && !req.GetCheckpoint() {
			return fmt.Errorf("exec %s runs: end it, or have execs ended (--end-execs): %w", p.id, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// capturable names what of one task is in the way of an operation; vm.mu is held.
func (t *Task) capturable() error {
	switch {
	case len(t.orphans) > 0:
		return fmt.Errorf("the start of exec %s was given up, and the guest has yet to end it%s: %w", t.orphans[0].id, remedy[t.vm.state], errUnderWay)
	case t.init.exited || !t.init.started:
		return fmt.Errorf("it has no init: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// work makes the snapshot, or sends the VM. Whatever fails, the VM runs on.
func (vm *VM) work(c *capture) {
	defer close(c.done)
	digest, err := c.make(c)
	if c.req.GetCheckpoint() {
		vm.keepTable(err == nil)
		c.cancel() // the timer's
	}
	if err != nil {
		err = fmt.Errorf("capture VM %s: %w", vm.id, vm.why(c, err))
		vm.log.Error("capture", "error", err)
		vm.op.cutShort.Store(errors.Is(err, errEarly)) // before its hold is gone
		if e := vm.enterFrom(Capturing, Aborting); e == nil {
			err = errors.Join(err, vm.thawSource(c, Capturing, true))
		} else if vm.is(Stopped) {
			c.deadline.Stop()
			err = errors.Join(err, vm.endDeadHold(c, false))
		}
		c.err = err
		return
	}
	c.digest = digest
	if c.req.GetCheckpoint() {
		vm.op.progress.clear()
		vm.hears(digest)
		return
	}
	vm.leave(Capturing, Captured)
}

// snapshot pushes what the VM is, while it runs and then in a pause.
func (vm *VM) snapshot(c *capture) (string, error) {
	if c.endExecs {
		vm.endExecs(c.ctx)
	}
	err := vm.write(func(j *Journal) {
		c.armed = j.Armed
		j.sends(c.ref, vm.patience(c))
		j.Repository = c.req.GetRepository()
	})
	if err != nil {
		return "", err
	}
	state, err := memoryFile("state")
	if err != nil {
		return "", err
	}
	s := &standing{vm: vm, c: c, paused: c.req.GetPaused(), state: state}
	defer s.state.Close()
	out := &machinev1.CaptureResponse{}
	receipt, err := vm.push(c, s, out)
	if err != nil {
		return "", err
	}
	if !c.req.GetCheckpoint() {
		if err := vm.write(func(j *Journal) { j.Digest = receipt.Digest.String() }); err != nil {
			return "", err
		}
	}
	f := receipt.Figures
	out.Digest, out.DurableMs = receipt.Digest.String(), ms(receipt.Durable.Sub(receipt.Captured))
	out.PauseMs, out.StopMs, out.SaveMs = ms(receipt.Captured.Sub(s.begun)), ms(s.stopped.Sub(s.begun)), ms(s.saved.Sub(s.stopped))
	out.RamBytes, out.ResidentBytes, out.PushedBytes, out.TotalBytes, out.DeadBytes = f.RAM, f.Resident, f.Pushed, f.Total, receipt.Dead
	out.InsideBytes, out.Notes = receipt.Inside, disksInPause(receipt.Disks)
	if !c.gone.IsZero() {
		out.PauseMs, out.GoneOn = ms(c.gone.Sub(s.begun)), true
	}
	out.Passes = passesOf(receipt.Passes)
	vm.log.Info("snapshot is durable", "digest", receipt.Digest, "resident", f.Resident, "new", f.New, "moved", receipt.Moved, "again", receipt.Again,
		"pushed", f.Pushed, "golden", c.req.GetGolden())
	if receipt.Orphaned != "" {
		vm.log.Warn("the page table is not used: all pages are pushed", "reason", receipt.Orphaned)
	}
	if receipt.Untabled != "" {
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

// sends says that an operation holds the VM, and has nothing of it yet.
func (j *Journal) sends(ref *machinev1.Ref, patience time.Duration) {
	j.Phase, j.Operation, j.Attempt, j.Digest, j.Repository, j.Move, j.Waking = Sending, ref.GetOperation(), ref.GetAttempt(), "", "", false, false
	j.Patience = patience.Milliseconds()
	j.Armed = false // who reads the notes uses them up
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

// budget of the pause; 0: no passes before it.
func (vm *VM) budget(ms int64) time.Duration {
	switch b := ms; {
	case b < 0:
		return 0
	case b > 0:
		return time.Duration(b) * time.Millisecond
	}
	return time.Duration(vm.host.Config.Worker.PauseBudget)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// push hands the VM's files to a worker.
func (vm *VM) push(c *capture, s *standing, out *machinev1.CaptureResponse) (snapshot.Receipt, error) {
	j, cfg := vm.noted(), vm.host.Config
	files := &openFiles{}
	defer files.close()
	none := snapshot.Receipt{}
	driver, err := vm.driver(c.ctx)
	if err != nil {
		return none, err
	}
	facts, err := driver.Probe(c.ctx)
	if err != nil {
		return none, err
	}
	job := worker.PushJob{
		Store: storeConfig(cfg, c.req.GetRepository()), Keys: worker.KeysOf(cfg), Tag: c.req.GetTag(), Spec: j.Spec, Facts: factsOf(facts, vm.host.HostKernel),
		Ref: snapshot.Ref{
			VM: vm.namespace + "/" + vm.id, UID: j.Spec.UID,
			Operation: c.ref.GetOperation(), Attempt: c.ref.GetAttempt(), Generation: c.ref.GetGeneration(),
		},
		State: worker.Open(s.state), Live: s, Budget: vm.budget(c.req.GetPauseBudgetMs()), Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
	}
	if n := c.req.GetConcurrency(); n > 0 {
		job.Concurrency = int(n)
	}
	if b := c.req.GetBandwidth(); b > 0 {
		job.Store.Bandwidth = int64(b)
	}
	if job.Table, err = openTable(j, files); err != nil {
		return none, err
	}
	job.Golden, job.Make = vm.openGolden(c.req, files), goldenOf(c.req, j.Spec)
	if job.Make == nil {
		job.Finished = vm.openFinished(j, files)
	}
	if c.req.GetCheckpoint() {
		if job.Next, err = openNext(j, files); err != nil {
			return none, err
		}
	}
	if job.Spaces, job.Disks, err = openSource(j, files); err != nil {
		return none, err
	}
	vm.openClones(job.Spaces, files)
	if job.Tracking, out.Tracking, out.Untracked = vm.track(c.ctx, job.Spaces[0].File.File, files); job.Tracking != nil {
		job.Tracking.Armed = c.armed
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	go s.watch(ctx, cancel)
	return vm.host.Snapshots(j.Cgroup).Push(ctx, job, func(p worker.Progress) {
		vm.op.progress.note(p)
		if !p.Captured.IsZero() && c.req.GetCheckpoint() {
			vm.goOn(c)
		}
	})
}

// openSource opens what a VM consists of, RAM first.
func openSource(j *Journal, files *openFiles) (spaces []worker.Space, disks []worker.Disk, err error) {
	ram, err := files.open(j.RAM, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	spaces = append(spaces, worker.Space{Name: ramSpace, File: worker.Open(ram)})
	for i, d := range j.Spec.Disks {
		f, err := files.open(j.Disks[i].Path, os.O_RDONLY)
		if err != nil {
			return nil, nil, err
		}
		if d.ReadOnly {
			disks = append(disks, worker.Disk{ID: d.ID, Digest: digest.Digest(d.Digest), File: worker.Open(f)})
			continue
		}
		spaces = append(spaces, worker.Space{Name: diskSpace(len(spaces) - 1), Disk: d.ID, File: worker.Open(f)})
	}
	return spaces, disks, nil
}

// track opens what finds changed pages of RAM, and says which way that is and why not a
// better one.
func (vm *VM) track(ctx context.Context, ram *os.File, files *openFiles) (t *worker.Tracking, way, why string) {
	t, why = vm.openTracking(ctx, ram, files)
	if t != nil {
		return t, string(t.Way), why
	}
	if why != "" {
		vm.log.Info("RAM is not tracked: all pages are compared in the pause", "reason", why)
	}
	return nil, string(track.Content), why
}
