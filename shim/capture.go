package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
)

// capture is one operation's hold on the VM, from the freeze to Abort or Release.
type capture struct {
	ref      *machinev1.Ref
	req      *machinev1.CaptureRequest
	ctx      context.Context // of the work; Abort ends it
	cancel   context.CancelFunc
	deadline *time.Timer   // after it the VM thaws itself, unless it has voted
	done     chan struct{} // closed when resp and err stand
	resp     *machinev1.CaptureResponse
	err      error
}

func sameRef(a, b *machinev1.Ref) bool {
	return a.GetOperation() == b.GetOperation() && a.GetAttempt() == b.GetAttempt() && a.GetGeneration() == b.GetGeneration()
}

// hold gives the VM to the operation of req, or answers its hold if it has it already.
func (vm *VM) hold(req *machinev1.CaptureRequest) (*capture, bool, error) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if c := vm.capture; c != nil && (vm.frozen() || vm.state == Stopped) {
		if sameRef(c.ref, req.GetRef()) {
			return c, false, nil
		}
		return nil, false, fmt.Errorf("capture VM %s: operation %s holds it: %w", vm.id, c.ref.GetOperation(), errdefs.ErrFailedPrecondition)
	}
	if err := vm.capturable(req); err != nil {
		return nil, false, fmt.Errorf("capture VM %s: %w", vm.id, err)
	}
	if err := vm.to(Capturing); err != nil {
		return nil, false, err
	}
	c := &capture{ref: req.GetRef(), req: req, done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(vm.life)
	bound := time.Duration(vm.host.Config.Timeouts.Operation)
	c.deadline = time.AfterFunc(bound, func() { vm.silent(c) })
	vm.capture = c
	return c, true, nil
}

// remedy for a state that is in the way.
var remedy = map[State]string{Paused: "; let it run first (ctr task resume)"}

// capturable is the preflight: it names what is in the way and changes nothing. vm.mu
// is held.
func (vm *VM) capturable(req *machinev1.CaptureRequest) error {
	switch {
	case req.GetRef().GetOperation() == "" || req.GetRepository() == "":
		return fmt.Errorf("operation and repository are needed: %w", errdefs.ErrInvalidArgument)
	case vm.state != Running:
		return fmt.Errorf("it is %s, not running%s: %w", vm.state, remedy[vm.state], errdefs.ErrFailedPrecondition)
	case vm.init.exited || !vm.init.started:
		return fmt.Errorf("it has no init: %w", errdefs.ErrFailedPrecondition)
	case vm.host.Records != nil && req.GetRef().GetGeneration() != vm.journal.Generation:
		return fmt.Errorf("generation %d is stale, the VM runs under %d: %w", req.GetRef().GetGeneration(), vm.journal.Generation, errdefs.ErrFailedPrecondition)
	}
	for id, p := range vm.execs {
		if p.starting != nil || !p.started && !p.exited {
			return fmt.Errorf("exec %s is being created: %w", id, errdefs.ErrFailedPrecondition)
		}
		if !p.exited && !req.GetEndExecs() {
			return fmt.Errorf("exec %s runs: end it, or have execs ended (--end-execs): %w", id, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// work makes the snapshot. Whatever fails, the VM runs on.
func (vm *VM) work(c *capture) {
	defer close(c.done)
	resp, err := vm.snapshot(c)
	if err != nil {
		err = fmt.Errorf("capture VM %s: %w", vm.id, err)
		vm.log.Error("capture", "error", err)
		if e := vm.enterFrom(Capturing, Aborting); e == nil {
			err = errors.Join(err, vm.thawSource(c, Capturing, true))
		}
		c.err = err
		return
	}
	c.resp = resp
	vm.leave(Capturing, Captured)
}

// snapshot freezes the VM and pushes what it is.
func (vm *VM) snapshot(c *capture) (*machinev1.CaptureResponse, error) {
	ctx := c.ctx
	if c.req.GetEndExecs() {
		vm.endExecs(ctx)
	}
	err := vm.write(func(j *Journal) {
		j.Phase, j.Operation, j.Attempt, j.Digest, j.Repository = Sending, c.ref.GetOperation(), c.ref.GetAttempt(), "", c.req.GetRepository()
	})
	if err != nil {
		return nil, err
	}
	ask, cancel := context.WithTimeout(ctx, guestBound)
	info, err := vm.agent.Info(ask, &agentv1.InfoRequest{})
	cancel()
	if err != nil {
		return nil, fmt.Errorf("ask guest: %w", err)
	}
	vm.snapStats(ctx)
	vm.still()
	begun := time.Now()
	if err := vm.machine.Pause(ctx); err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make state file: %w", err)
	}
	state := os.NewFile(uintptr(fd), "state")
	defer state.Close()
	if err := vm.machine.SaveState(ctx, state); err != nil {
		return nil, err
	}
	receipt, err := vm.push(c, state, Resume{BootID: info.GetBootId(), UptimeMS: info.GetUptimeMs(), Init: vm.init.pumps.stop()})
	if err != nil {
		return nil, err
	}
	if err := vm.write(func(j *Journal) { j.Digest = receipt.Digest.String() }); err != nil {
		return nil, err
	}
	f := receipt.Figures
	return &machinev1.CaptureResponse{
		Digest: receipt.Digest.String(), PauseMs: ms(receipt.Captured.Sub(begun)), DurableMs: ms(receipt.Durable.Sub(receipt.Captured)),
		RamBytes: f.RAM, ResidentBytes: f.Resident, PushedBytes: f.Pushed, TotalBytes: f.Total,
	}, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// push hands the paused VM's files to a worker.
func (vm *VM) push(c *capture, state *os.File, resume Resume) (snapshot.Receipt, error) {
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
	data, err := json.Marshal(resume)
	if err != nil {
		return none, err
	}
	job := worker.PushJob{
		Store: storeConfig(cfg, c.req.GetRepository()), Tag: c.req.GetTag(), Spec: j.Spec, Facts: factsOf(facts, vm.host.HostKernel),
		Ref: snapshot.Ref{
			VM: vm.namespace + "/" + vm.id, UID: j.Spec.UID,
			Operation: c.ref.GetOperation(), Attempt: c.ref.GetAttempt(), Generation: c.ref.GetGeneration(),
		},
		Resume: data, State: worker.Open(state), Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
	}
	if job.Table, err = openTable(j, files); err != nil {
		return none, err
	}
	ram, err := files.open(j.RAM, os.O_RDONLY)
	if err != nil {
		return none, err
	}
	job.Spaces = append(job.Spaces, worker.Space{Name: ramSpace, File: worker.Open(ram)})
	for i, d := range j.Spec.Disks {
		f, err := files.open(j.Disks[i].Path, os.O_RDONLY)
		if err != nil {
			return none, err
		}
		if d.ReadOnly {
			job.Disks = append(job.Disks, worker.Disk{ID: d.ID, Digest: digest.Digest(d.Digest), File: worker.Open(f)})
			continue
		}
		job.Spaces = append(job.Spaces, worker.Space{Name: diskSpace(len(job.Spaces) - 1), Disk: d.ID, File: worker.Open(f)})
	}
	return vm.host.Snapshots(j.Cgroup).Push(c.ctx, job, vm.progress.note)
}
