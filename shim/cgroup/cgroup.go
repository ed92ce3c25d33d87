// Package cgroup has the task's cgroup on the host, of version 1 or 2. It holds what the VM
// costs: VMM, shim, pause process and workers. Its limit is that of the whole VM; the
// container's own limits hold inside the guest.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const root = "/sys/fs/cgroup"

// controllers of cgroup v1 that account for a VM, and those of v2 that do.
var (
	controllers = []string{"cpu,cpuacct", "cpu", "cpuacct", "memory", "pids"}
	delegated   = []string{"+cpu", "+memory", "+pids"}
)

const procsFile = "cgroup.procs"

// Dirs names the host's cgroup of a task: where path says, which may have
// systemd's form slice:prefix:name, else below godwit's own. The hierarchy of cpusets is one of them if set asks for
// something. Unavailable says that it cannot be told which controllers the host has.
func Dirs(path, namespace, id string, set Cpuset) ([]string, error) {
	return DirsBelow(root, cgroups.Mode() == cgroups.Unified, path, namespace, id, set)
}

// DirsBelow is Dirs on a host whose hierarchies are mounted below root.
func DirsBelow(root string, unified bool, path, namespace, id string, set Cpuset) ([]string, error) {
	if path == "" {
		path = filepath.Join("/godwit", namespace+"."+id)
	}
	if parts := strings.Split(path, ":"); len(parts) == 3 {
		path = filepath.Join(slicePath(parts[0]), parts[1]+"-"+parts[2]+".scope")
	}
	path = filepath.Join("/", path) // no way out of the root
	if unified {
		return []string{filepath.Join(root, path)}, nil
	}
	var dirs []string
	wanted := controllers
	if set.Any() {
		wanted = append(slices.Clone(controllers), cpusetController)
	}
	for _, name := range wanted {
		// One name may be a link to another: cpu is cpu,cpuacct where both are mounted as one.
		at := filepath.Join(root, name)
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("look for the cgroup controller %s: %w: %w", name, errdefs.ErrUnavailable, err)
		case info.IsDir():
			dirs = append(dirs, filepath.Join(at, path))
		}
	}
	return dirs, nil
}

// slicePath is where systemd puts a slice: a-b.slice lies in a.slice.
func slicePath(slice string) string {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "-" {
		return filepath.Join("/", strings.TrimPrefix(slice, "-.slice"))
	}
	path, parts := "/", strings.Split(name, "-")
	for i := range parts {
		path = filepath.Join(path, strings.Join(parts[:i+1], "-")+".slice")
	}
	return path
}

// Make makes the directories and, where controllers are handed down by hand, has
// them there.
func Make(dirs []string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		for _, above := range slices.Backward(ancestors(d)) {
			file := filepath.Join(above, "cgroup.subtree_control")
			if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
				break // cgroup v1
			}
			for _, c := range delegated { // each alone: a kernel may lack one
				_ = os.WriteFile(file, []byte(c), 0)
			}
		}
	}
	return nil
}

// ancestors of a cgroup, the nearest first, up to the top of its hierarchy.
func ancestors(dir string) (all []string) {
	for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, procsFile)); err != nil {
			return all
		}
		all = append(all, at)
	}
}

// LimitMemory bounds what the cgroup takes. NotExist says that the host has no
// controller for it.
func LimitMemory(dirs []string, bytes uint64) error {
	for _, d := range dirs {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			err := os.WriteFile(filepath.Join(d, name), []byte(strconv.FormatUint(bytes, 10)), 0)
			if err == nil {
				return nil
			}
			if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) { // nothing can be made in a cgroup
				return fmt.Errorf("limit memory of cgroup: %w", err)
			}
		}
	}
	return fmt.Errorf("limit memory of cgroup: no memory controller: %w", os.ErrNotExist)
}

// Join puts a process into the cgroup.
func Join(dirs []string, pid int) error {
	for _, d := range dirs {
		if err := os.WriteFile(filepath.Join(d, procsFile), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// Leave puts a process that is in the cgroup at the top of the hierarchy. Where it came
// from may be gone: containerd's own cgroup ends with its service.
func Leave(dirs []string, pid int) error {
	var errs []error
	for _, d := range dirs {
		above := ancestors(d)
		in, err := members(d)
		if err == nil && (len(above) == 0 || !slices.Contains(in, pid)) {
			continue
		}
		if err == nil {
			err = moveToTop(above[len(above)-1], pid, Join)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// shimsGroup is where a process goes that the top does not take.
const shimsGroup = "godwit-shims"

// moveToTop moves a process to the top of what this host sees. In a container with version 2 that is
// no root, and takes no process once it hands controllers down.
func moveToTop(top string, pid int, join func([]string, int) error) error {
	err := join([]string{top}, pid)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	below := filepath.Join(top, shimsGroup)
	if err := os.MkdirAll(below, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return join([]string{below}, pid)
}
