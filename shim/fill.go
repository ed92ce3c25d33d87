package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/worker"
)

// storeConfig says how to reach a repository with the node's own keys.
func storeConfig(cfg *config.Config, repository string) store.Config {
	return store.Config{
		Repository: repository, PlainHTTP: cfg.Registry.PlainHTTP,
		CAFile: cfg.Registry.CAFile, DockerConfig: cfg.Registry.DockerConfig, HostsDir: cfg.Registry.HostsDir,
		Bandwidth: int64(cfg.Worker.Bandwidth),
	}
}

// ramSpace and diskSpace name the address spaces of a snapshot.
const ramSpace = "ram0"

func diskSpace(i int) string { return fmt.Sprintf("disk%d", i) }

// fill brings RAM, disks and device state of the snapshot here, every byte verified.
// RAM of a lazy wake comes later, while the VM runs. No instruction has been executed.
func (c *creation) fill(ctx context.Context, _ *undo) (err error) {
	if c.decision.Action != record.Restore {
		return nil
	}
	var resume Resume
	if err := json.Unmarshal(c.snapshot.Resume, &resume); err != nil {
		return fmt.Errorf("its resume information: %w: %w", err, errdefs.ErrDataLoss)
	}
	if err := resume.check(); err != nil {
		return err
	}
	j := c.vm.noted()
	files := &openFiles{}
	defer files.close()
	job, err := c.fillJob(j, files)
	if err != nil {
		return err
	}
	if err := c.host.Snapshots(j.Cgroup).Fill(ctx, *job, c.vm.progress.note); err != nil {
		return err
	}
	if err := adoptDisks(job.Disks); err != nil {
		return err
	}
	for _, d := range job.Disks {
		if err := c.host.Disks.Keep(d.Digest.String(), whole(d)); err != nil {
			c.vm.log.Warn("the node does not keep a disk: its next VM fetches it again", "disk", d.ID, "error", err)
		}
	}
	return c.vm.write(func(j *Journal) {
		j.Phase, j.Resume, j.BootID = Ready, resume, resume.BootID
		if j.Restored.lazy() {
			j.Filling = &Filling{j.Repository, j.Digest}
		}
	})
}

// fillJob opens the files of the VM that the Spec names; the paths are this node's.
func (c *creation) fillJob(j *Journal, files *openFiles) (*worker.FillJob, error) {
	cfg := c.host.Config
	job := &worker.FillJob{
		Store: storeConfig(cfg, j.Repository), Keys: worker.KeysOf(cfg), Digest: digest.Digest(j.Digest), Want: &c.snapshot.Ref,
		Memory: int64(cfg.Worker.Memory), Concurrency: cfg.Worker.Concurrency,
	}
	const fresh = os.O_CREATE | os.O_RDWR | os.O_TRUNC
	if job.Lazy = j.Restored.lazy(); !job.Lazy {
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
			if c.host.Disks.Link(d.Digest, j.Disks[i].Path) == nil {
				continue // the node has it
			}
			f, err := files.open(j.Disks[i].Path+partial, fresh)
			if err != nil {
				return nil, err
			}
			job.Disks = append(job.Disks, worker.Disk{ID: d.ID, Digest: digest.Digest(d.Digest), File: worker.Open(f)})
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

const partial = ".partial"

// adoptDisks gives verified files their names.
func adoptDisks(disks []worker.Disk) error {
	for _, d := range disks {
		path := d.File.Name()
		if err := os.Chmod(path, 0o444); err != nil { // for the VMM, which is a user of its own
			return err
		}
		if err := os.Rename(path, whole(d)); err != nil {
			return err
		}
	}
	return nil
}

// whole is the name of a disk that is complete.
func whole(d worker.Disk) string { return strings.TrimSuffix(d.File.Name(), partial) }

// tableFile knows the pages that the store has already, for the next snapshot. It has keys
// in it, and so lies in memory, but not beside the RAM: whoever is admitted there may touch
// all that was promised, and a page that is not left then is the end of a VM.
func tableFile(j *Journal) string { return filepath.Join(j.RunDir, "table") }

// restoredDisks names the files of a VM that came from a snapshot.
func restoredDisks(s *spec.Spec, dir string) []JournalDisk {
	var out []JournalDisk
	for _, d := range s.Disks {
		out = append(out, JournalDisk{ID: d.ID, Path: filepath.Join(dir, d.ID+".img")})
	}
	return out
}

// openTable answers nil if there is none.
func openTable(j *Journal, files *openFiles) (*worker.File, error) {
	f, err := files.open(tableFile(j), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return worker.Open(f), nil
}
