package agentd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// look is how often something is looked at for which the kernel wakes no one.
const look = 2 * time.Millisecond

// poll calls done until it says so, or fails, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	for {
		over, err := done()
		if over || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(look):
		}
	}
}

// below is a cgroup in this one.
func (c cgroup) below(name string) cgroup { return cgroup(filepath.Join(string(c), name)) }

// end kills every process of the cgroup and returns once the last one has ended.
func (c cgroup) end(ctx context.Context) error {
	if err := c.signalAll(unix.SIGKILL); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	err := poll(ctx, func() (bool, error) {
		events, err := c.table("cgroup.events")
		return events["populated"] == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the processes of cgroup %s: %w: %w", c, err, errdefs.ErrUnavailable)
	}
	return nil
}

// remove removes the cgroup and those that its processes have made in it.
func (c cgroup) remove() error {
	var below []string
	err := filepath.WalkDir(string(c), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err == nil && d.IsDir() {
			below = append(below, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for i := len(below) - 1; i >= 0; i-- {
		if err := unix.Rmdir(below[i]); err != nil && err != unix.ENOENT {
			return fmt.Errorf("remove cgroup %s: %w", below[i], err)
		}
	}
	return nil
}

// applyToPod is apply for a cgroup of several containers: one process killed for memory does not
// take all of them with it.
func (c cgroup) applyToPod(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	whole := *r
	whole.Unified = map[string]string{"memory.oom.group": "0"}
	for name, value := range r.Unified {
		whole.Unified[name] = value
	}
	return c.apply(&whole)
}
