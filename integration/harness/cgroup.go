package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted tree of cgroups.
type hierarchy struct {
	path    string
	unified bool // of version 2
}

func hierarchies() ([]hierarchy, error) {
	// Of this thread: the process' first one may have entered a node, and stays there.
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		before, after, _ := strings.Cut(line, " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || len(super) < 1 || super[0] != "cgroup" && super[0] != "cgroup2" {
			continue
		}
		all = append(all, hierarchy{path: mount[4], unified: super[0] == "cgroup2"})
	}
	return all, nil
}

// ownCgroups moves this process into a cgroup of that name in every hierarchy, and makes
// that the root of what the node sees: it shares no cgroup with another node or with the
// host, and what it leaves is its own.
func ownCgroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.join(name); err != nil {
			return fmt.Errorf("join own cgroup in %s: %w", h.path, err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make cgroup namespace: %w", err)
	}
	for _, h := range all {
		if err := h.vacate(name); err != nil {
			return fmt.Errorf("leave the node's first cgroup in %s: %w", h.path, err)
		}
		if err := unix.Mount(filepath.Join(h.path, name), h.path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount own cgroups on %s: %w", h.path, err)
		}
	}
	return nil
}

func (h hierarchy) join(name string) error {
	dir := filepath.Join(h.path, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if h.unified {
		// Refused where a manager of cgroups gives less; what is missing then is missed by the tests that look at it.
		for _, c := range []string{"+cpu", "+cpuset", "+memory", "+pids"} {
			_ = os.WriteFile(filepath.Join(h.path, "cgroup.subtree_control"), []byte(c), 0o644)
		}
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new one, which then takes no process
		value, err := os.ReadFile(filepath.Join(h.path, file))
		if err != nil || h.unified {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644)
}

// vacate moves this process one level down in version 2, where a cgroup with processes
// in it hands no controller to those below: the first of a node is a host's root to it.
func (h hierarchy) vacate(name string) error {
	if !h.unified {
		return nil
	}
	dir := filepath.Join(h.path, name, "holder")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644)
}

// removeCgroups removes a node's cgroups once its processes are gone.
func removeCgroups(name string) error {
	all, err := hierarchies()
	for _, h := range all {
		err = errors.Join(err, removeTree(filepath.Join(h.path, name)))
	}
	return err
}

// removeTree removes a cgroup and those below it. The last process of one has left it a
// moment after its end.
func removeTree(dir string) error {
	dirs, err := subCgroups(dir)
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(append([]string{dir}, dirs...)) {
		for try := 0; ; try++ {
			if err = unix.Rmdir(d); err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || try == 100 {
				return fmt.Errorf("remove cgroup %s: %w", d, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// subCgroups lists the cgroups in dir, each before those in it.
func subCgroups(dir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err == nil && d.IsDir() && path != dir {
			all = append(all, path)
		}
		return err
	})
	return all, err
}

// Cgroup is the path by which this process reaches a cgroup file of the node.
func (n *Node) Cgroup(elem ...string) string {
	return filepath.Join(append([]string{n.inside("/sys/fs/cgroup")}, elem...)...)
}

// cgroups of the node: all that it sees but the directories of containerd's namespaces,
// which every runtime leaves.
func (n *Node) cgroups() ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, h := range all {
		dirs, err := subCgroups(n.inside(h.path))
		if err != nil {
			return nil, err
		}
		for _, d := range dirs {
			if d = strings.TrimPrefix(d, n.holder.proc("root")); filepath.Dir(d) != h.path {
				out = append(out, "cgroup "+d)
			}
		}
	}
	return out, nil
}
