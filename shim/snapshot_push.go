package shim

import (
	"context"
	"os"
	"time"

	"github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/worker"
)

// pauseBudget is how long the pause is to take at most; 0: no passes before it.
func pauseBudget(cfg *config.Config, ms int64) time.Duration {
	switch b := ms; {
	case b < 0:
		return 0
	case b > 0:
		return time.Duration(b) * time.Millisecond
	}
	return time.Duration(cfg.Worker.PauseBudget)
}

// pushing is one worker that makes a snapshot.
type pushing struct {
	vm    *VM
	c     *capture
	live  *livePause
	files *openFiles
	out   *machinev1.CaptureResponse // says what the worker was given to do its work with
}

// push hands the VM's files to a worker.
func (p *pushing) push() (snapshot.Receipt, error) {
	vm, c, files := p.vm, p.c, p.files
	j, cfg := vm.journal.Load(), vm.host.Config
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
	at, err := vm.host.storeOf(c.ctx, c.req.GetRepository())
	if err != nil {
		return none, err
	}
	job := worker.PushJob{
		Store: at, Keys: worker.KeysOf(cfg), Tag: c.req.GetTag(), Spec: j.Spec,
		Facts: factsOf(facts, vm.host.HostKernel),
		Ref: snapshot.Ref{
			VM: vm.namespace + "/" + vm.id, UID: j.Spec.UID,
			Operation: c.ref.GetOperation(), Attempt: c.ref.GetAttempt(), Generation: c.ref.GetGeneration(),
		},
		State: worker.Open(p.live.state), Live: p.live, Budget: pauseBudget(cfg, c.req.GetPauseBudgetMs()),
		Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
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
	job.Golden, job.Make = p.openGolden(c.req), goldenOf(c.req, j.Spec)
	if job.Make == nil {
		job.Finished = p.openFinished(j)
	}
	if c.req.GetCheckpoint() {
		if job.Next, err = openNext(j, files); err != nil {
			return none, err
		}
	}
	if job.Spaces, job.Disks, err = openSource(j, files); err != nil {
		return none, err
	}
	p.openClones(job.Spaces)
	p.live.noteDisks(c.ctx, job.Spaces, job.Budget, files)
	if job.Tracking, p.out.Tracking, p.out.Untracked = vm.tracking.open(c.ctx, job.Spaces[0].File.File,
		files); job.Tracking != nil {
		job.Tracking.Armed = c.armed
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	go p.live.watch(ctx, cancel)
	return vm.host.Snapshots(j.Cgroup).Push(ctx, job, func(now worker.Progress) {
		vm.op.progress.note(now)
		if !now.Captured.IsZero() && c.req.GetCheckpoint() {
			if now.Noting {
				c.noting = j.Process
			}
			c.resumeVM()
		}
	})
}

// openSource opens what a VM consists of, RAM first.
func openSource(j *journal.Journal, files *openFiles) (spaces []worker.Space, disks []worker.Disk, err error) {
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
