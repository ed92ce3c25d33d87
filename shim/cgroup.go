package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/proc"
)

const cgroupRoot = "/sys/fs/cgroup"

// controllers of cgroup v1 that account for a VM; limits are the guest's affair.
var controllers = []string{"cpu,cpuacct", "memory", "pids"}

// CgroupDirs names the host's cgroup of a task: where path says, which may have
// systemd's form slice:prefix:name, else below godwit's own.
func CgroupDirs(path, namespace, id string) []string {
	if path == "" {
		path = filepath.Join("/godwit", namespace+"."+id)
	}
	if parts := strings.Split(path, ":"); len(parts) == 3 {
		path = filepath.Join("/", parts[0], parts[1]+"-"+parts[2]+".scope")
	}
	path = filepath.Join("/", path) // no way out of the root
	if cgroups.Mode() == cgroups.Unified {
		return []string{filepath.Join(cgroupRoot, path)}
	}
	var dirs []string
	for _, name := range controllers {
		if _, err := os.Stat(filepath.Join(cgroupRoot, name)); err == nil {
			dirs = append(dirs, filepath.Join(cgroupRoot, name, path))
		} else if first, _, ok := strings.Cut(name, ","); ok {
			if _, err := os.Stat(filepath.Join(cgroupRoot, first)); err == nil {
				dirs = append(dirs, filepath.Join(cgroupRoot, first, path))
			}
		}
	}
	return dirs
}

func makeCgroup(dirs []string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return nil
}

// absent answers the directories that are not there: a cgroup that Create finds is not
// the VM's alone.
func absent(dirs []string) []string {
	var out []string
	for _, d := range dirs {
		if _, err := os.Stat(d); errors.Is(err, os.ErrNotExist) {
			out = append(out, d)
		}
	}
	return out
}

// emptyCgroup kills what runs in the directories: a VMM that was started and, its shim
// being killed, never written down.
func emptyCgroup(ctx context.Context, dirs []string) error {
	var errs []error
	for _, d := range dirs {
		data, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("empty cgroup: %w", err))
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid <= 1 || pid == os.Getpid() { // 0 is a process of another pid namespace
				continue
			}
			if id, err := proc.Find(pid); err == nil {
				errs = append(errs, id.Kill(ctx))
			}
		}
	}
	return errors.Join(errs...)
}

// removeCgroup removes the directories themselves; their parents may be others'.
func removeCgroup(dirs []string) error {
	var errs []error
	for _, d := range dirs {
		if err := os.Remove(d); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}
