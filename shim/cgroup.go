package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/cgroups/v3"
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
