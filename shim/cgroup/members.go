package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/proc"
)

// members of one directory; 0 is a process of another pid namespace. A cgroup that is not there has
// none.
func members(dir string) (pids []int, err error) {
	data, err := os.ReadFile(filepath.Join(dir, procsFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("list processes of a cgroup: %w: %w", err, errdefs.ErrUnavailable)
	}
	for _, field := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Absent answers the directories that are not there: a cgroup that Create finds is not
// the VM's alone.
func Absent(dirs []string) []string {
	var out []string
	for _, d := range dirs {
		if _, err := os.Stat(d); errors.Is(err, os.ErrNotExist) {
			out = append(out, d)
		}
	}
	return out
}

// OtherProcesses are the processes in the directories but the caller.
func OtherProcesses(dirs []string) (ids []proc.ID, err error) {
	for _, d := range dirs {
		pids, err := members(d)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			if pid <= 1 || pid == os.Getpid() {
				continue
			}
			id, err := proc.Find(pid)
			if proc.Missing(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			// One that is still a member once it has its name is no other process by now.
			now, err := members(d)
			if err != nil {
				return nil, err
			}
			if slices.Contains(now, pid) {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// Empty kills what runs in the directories: a VMM that was started and, its shim
// being killed, never written down. The caller itself leaves.
func Empty(ctx context.Context, dirs []string) error {
	errs := []error{Leave(dirs, os.Getpid())}
	left, err := OtherProcesses(dirs)
	if err != nil {
		errs = append(errs, fmt.Errorf("empty cgroup: %w", err))
	}
	for _, id := range left {
		errs = append(errs, id.Kill(ctx))
	}
	return errors.Join(errs...)
}

// busyBound is how long a cgroup whose processes have ended may be refused its removal.
const (
	busyBound = 2 * time.Second
	busyPause = 5 * time.Millisecond
)

// Remove removes the directories themselves; their parents may be others'.
func Remove(dirs []string) error {
	var errs []error
	for _, d := range dirs {
		err := os.Remove(d)
		// A process that was killed is in it until its parent knows, which after the death
		// of the shim is not this one.
		for until := time.Now().Add(busyBound); errors.Is(err, unix.EBUSY) && time.Now().Before(until); {
			time.Sleep(busyPause)
			err = os.Remove(d)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}
