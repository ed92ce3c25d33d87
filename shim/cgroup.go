package shim

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

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/proc"
)

// The task's cgroup on the host holds what the VM costs: VMM, shim, holder and workers.
// Its limit is that of the whole VM; the container's own limits hold inside the guest.

const cgroupRoot = "/sys/fs/cgroup"

// controllers of cgroup v1 that account for a VM, and those of v2 that do.
var (
	controllers = []string{"cpu,cpuacct", "cpu", "cpuacct", "memory", "pids"}
	delegated   = []string{"+cpu", "+memory", "+pids"}
)

const procsFile = "cgroup.procs"

// CgroupDirs names the host's cgroup of a task: where path says, which may have
// systemd's form slice:prefix:name, else below godwit's own.
func CgroupDirs(path, namespace, id string) []string {
	return cgroupDirs(cgroupRoot, cgroups.Mode() == cgroups.Unified, path, namespace, id)
}

func cgroupDirs(root string, unified bool, path, namespace, id string) []string {
	if path == "" {
		path = filepath.Join("/godwit", namespace+"."+id)
	}
	if parts := strings.Split(path, ":"); len(parts) == 3 {
		path = filepath.Join(slicePath(parts[0]), parts[1]+"-"+parts[2]+".scope")
	}
	path = filepath.Join("/", path) // no way out of the root
	if unified {
		return []string{filepath.Join(root, path)}
	}
	var dirs []string
	for _, name := range controllers {
		// One name may be a link to another: cpu is cpu,cpuacct where both are mounted as one.
		at := filepath.Join(root, name)
		if info, err := os.Lstat(at); err == nil && info.IsDir() {
			dirs = append(dirs, filepath.Join(at, path))
		}
	}
	return dirs
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

// makeCgroup makes the directories and, where controllers are handed down by hand, has
// them there.
func makeCgroup(dirs []string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		for _, above := range slices.Backward(ancestors(d)) {
			file := filepath.Join(above, "cgroup.subtree_control")
			if _, err := os.Stat(file); err != nil {
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

// limitMemory bounds what the cgroup takes. NotExist says that the host has no
// controller for it.
func limitMemory(dirs []string, bytes uint64) error {
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

// join puts a process into the cgroup.
func join(dirs []string, pid int) error {
	for _, d := range dirs {
		if err := os.WriteFile(filepath.Join(d, procsFile), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// leave puts a process that is in the cgroup at the top of the hierarchy. Where it came
// from may be gone: containerd's own cgroup ends with its service.
func leave(dirs []string, pid int) error {
	var errs []error
	for _, d := range dirs {
		above := ancestors(d)
		if len(above) == 0 || !slices.Contains(members(d), pid) {
			continue
		}
		errs = append(errs, toTop(above[len(above)-1], pid, join))
	}
	return errors.Join(errs...)
}

// beside is where a process goes that the top does not take.
const beside = "godwit-shims"

// toTop moves a process to the top of what this host sees. In a container with version 2
// that is no root, and takes nobody once it hands controllers down.
func toTop(top string, pid int, join func([]string, int) error) error {
	err := join([]string{top}, pid)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	below := filepath.Join(top, beside)
	if err := os.MkdirAll(below, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return join([]string{below}, pid)
}

// members of one directory; 0 is a process of another pid namespace.
func members(dir string) (pids []int) {
	data, _ := os.ReadFile(filepath.Join(dir, procsFile))
	for _, field := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
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

// alone answers those of a VM's private directories that no other VM of the node is in: one
// that was made for the VM in dir may have been named by a later one too, which lives on.
// As a rule nobody is left in them, and no journal is read.
func alone(dir string, private []string) []string {
	if len(strangers(private)) == 0 {
		return private
	}
	vms, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(dir)), "*", "*"))
	if err != nil {
		return private // the pattern has no brackets
	}
	private = slices.Clone(private)
	for _, other := range vms {
		if j, err := loadJournal(other); other != dir && err == nil {
			private = slices.DeleteFunc(private, func(d string) bool { return slices.Contains(j.Cgroup, d) })
		}
	}
	return private
}

// strangers are the processes in the directories but the caller.
func strangers(dirs []string) (ids []proc.ID) {
	for _, d := range dirs {
		for _, pid := range members(d) {
			if pid <= 1 || pid == os.Getpid() {
				continue
			}
			// One that is still a member once it has its name is no other process by now.
			if id, err := proc.Find(pid); err == nil && slices.Contains(members(d), pid) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// emptyCgroup kills what runs in the directories: a VMM that was started and, its shim
// being killed, never written down. The caller itself leaves.
func emptyCgroup(ctx context.Context, dirs []string) error {
	errs := []error{leave(dirs, os.Getpid())}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, procsFile)); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("empty cgroup: %w", err))
		}
	}
	for _, id := range strangers(dirs) {
		errs = append(errs, id.Kill(ctx))
	}
	return errors.Join(errs...)
}

// busyBound is how long a cgroup whose processes have ended may be refused its removal.
const (
	busyBound = 2 * time.Second
	busyPause = 5 * time.Millisecond
)

// removeCgroup removes the directories themselves; their parents may be others'.
func removeCgroup(dirs []string) error {
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
