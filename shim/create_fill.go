package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot/worker"
)

// ramSpace and diskSpace name the address spaces of a snapshot.
const ramSpace = "ram0"

func diskSpace(i int) string { return fmt.Sprintf("disk%d", i) }

// fill brings RAM, disks and device state of the snapshot here, every byte verified.
// RAM of a lazy wake comes later, while the VM runs. No instruction has been executed.
func (c *creation) fill(ctx context.Context, _ *steps.Undo) (err error) {
	if c.decision.Action != record.Restore {
		return nil
	}
	var resume journal.Resume
	if err := json.Unmarshal(c.snapshot.Resume, &resume); err != nil {
		return fmt.Errorf("its resume information: %w: %w", err, errdefs.ErrDataLoss)
	}
	j := c.vm.journal.Load()
	if err := errors.Join(resume.Check(), checkResume(j, &resume)); err != nil {
		return err
	}
	files := &openFiles{}
	defer files.close()
	fetched := &fetchedDisks{disks: c.host.Disks}
	job, err := c.fillJob(ctx, j, files, fetched)
	if err == nil {
		err = c.host.Snapshots(j.Cgroup).Fill(ctx, *job, c.vm.op.progress.note)
	}
	if err := fetched.wait(err); err != nil {
		return err
	}
	return c.vm.write(func(j *journal.Journal) {
		j.Phase, j.Resume, j.BootID = journal.Ready, resume, resume.BootID
		j.OweEnds(resume.Ended)
		j.Stdio = c.task.configuredOutput(j.Stdio, resume)
		if j.Restored.Lazy() {
			j.Postcopy = &journal.Postcopy{Repository: j.Repository, Digest: j.Digest}
		}
	})
}

// fillJob opens the files of the VM that the Spec names; the paths are this node's.
func (c *creation) fillJob(ctx context.Context, j *journal.Journal, files *openFiles,
	fetched *fetchedDisks) (*worker.FillJob, error) {
	cfg := c.host.Config
	at, err := c.host.storeOf(ctx, j.Repository)
	if err != nil {
		return nil, err
	}
	job := &worker.FillJob{
		Store: at, Keys: worker.KeysOf(cfg), Digest: digest.Digest(j.Digest),
		Want:   &c.snapshot.Ref,
		Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
	}
	const fresh = os.O_CREATE | os.O_RDWR | os.O_TRUNC
	if job.Lazy = j.Restored.Lazy(); !job.Lazy {
		ram, err := files.open(j.RAM, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		job.Spaces = append(job.Spaces, worker.Space{Name: ramSpace, File: worker.Open(ram)})
		table, err := files.open(tableFile(j), fresh)
		if err != nil {
			return nil, err
		}
		job.Table = worker.Open(table)
	}
	state, err := files.open(stateFile(c.vm.dir), fresh)
	if err != nil {
		return nil, err
	}
	job.State = worker.Open(state)
	writable := 0
	for i, d := range j.Spec.Disks {
		if d.ReadOnly {
			if c.host.Disks.Link(ctx, d.Digest, j.Disks[i].Path) == nil {
				continue // the node has it
			}
			to, err := fetched.fetch(ctx, d.Digest, d.Size, j.Disks[i].Path)
			if err != nil {
				return nil, err
			}
			job.Disks = append(job.Disks, worker.Disk{ID: d.ID, Digest: digest.Digest(d.Digest), File: worker.Open(to)})
			continue
		}
		f, err := files.open(j.Disks[i].Path, fresh)
		if err != nil {
			return nil, err
		}
		job.Spaces = append(job.Spaces, worker.Space{Name: diskSpace(writable), Disk: d.ID, File: worker.Open(f)})
		writable++
	}
	return job, nil
}

// tableFile knows the pages that the store has already, for the next snapshot. It has keys in it, and so lies in
// memory, but not in the directory of the RAM: a VM that is admitted there may touch all that was promised. A page that
// is not left then is the end of a VM.
func tableFile(j *journal.Journal) string { return filepath.Join(j.RunDir, "table") }

// restoredDisks names the files of a VM that came from a snapshot.
func restoredDisks(s *spec.Spec, dir string) []journal.Disk {
	var out []journal.Disk
	for _, d := range s.Disks {
		out = append(out, journal.Disk{ID: d.ID, Path: filepath.Join(dir, d.ID+".img")})
	}
	return out
}

// openTable answers nil if there is none.
func openTable(j *journal.Journal, files *openFiles) (*worker.File, error) {
	f, err := files.open(tableFile(j), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return worker.Open(f), nil
}
