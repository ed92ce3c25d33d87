package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Cpuset are CPUs and memory nodes of this host, as lists such as 0-2,7. An empty list asks for nothing.
//
// Format: cpuset(7), "List format".
type Cpuset struct{ CPUs, Mems string }

// Any reports whether something is asked for.
func (s Cpuset) Any() bool { return s.CPUs != "" || s.Mems != "" }

const (
	cpusetController = "cpuset"
	cpusFile         = "cpuset.cpus"
	memsFile         = "cpuset.mems"
)

// cpusetPart is one of the two lists, with the field that asks for it and its file. The files called effective say what
// a cgroup really has, in version 2 and in version 1.
type cpusetPart struct {
	list, field, what, file string
	effective               [2]string
}

func (s Cpuset) parts() []cpusetPart {
	return []cpusetPart{
		{s.CPUs, "linux.resources.cpu.cpus", "CPUs", cpusFile, [2]string{"cpuset.cpus.effective", "cpuset.effective_cpus"}},
		{s.Mems, "linux.resources.cpu.mems", "memory nodes", memsFile,
			[2]string{"cpuset.mems.effective", "cpuset.effective_mems"}},
	}
}

// Pin gives the processes of a cgroup these CPUs and memory nodes alone. What the host does not have is refused by the
// name of its field. made are those of the directories that were made for the task: the others keep what their owner
// set.
func Pin(dirs, made []string, s Cpuset) error {
	if !s.Any() {
		return nil
	}
	dir, err := cpusetDir(dirs)
	if err != nil {
		return err
	}
	above := filepath.Dir(dir)
	for _, p := range s.parts() {
		if p.list == "" {
			continue
		}
		if dir == "" {
			return fmt.Errorf("%s: %q: this host has no cpuset controller for the cgroup of a VM: leave it out: %w", p.field,
				p.list, errdefs.ErrNotImplemented)
		}
		if !slices.Contains(made, dir) {
			return fmt.Errorf("%s: %q: the cgroup %s was there before, and keeps what its owner set: leave it out, or give "+
				"the container a cgroup of its own: %w", p.field, p.list, dir, errdefs.ErrFailedPrecondition)
		}
		if err := p.check(above); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.file), []byte(p.list), 0o644); err != nil {
			return fmt.Errorf("%s: give %q to the cgroup of the VM: %w", p.field, p.list, err)
		}
	}
	return nil
}

// cpusetDir is the directory that has the controller, empty if none has. Version 2 hands it down on demand. In
// version 1 a cgroup takes no process before both of its lists are filled.
func cpusetDir(dirs []string) (string, error) {
	for _, d := range dirs {
		chain := append([]string{d}, ancestors(d)...)
		slices.Reverse(chain)
		for i, at := range chain {
			if i > 0 {
				if err := inherit(chain[i-1], at); err != nil {
					return "", err
				}
			}
			control := filepath.Join(at, "cgroup.subtree_control")
			if _, err := os.Stat(control); err == nil && at != d {
				_ = os.WriteFile(control, []byte("+"+cpusetController), 0) // what it lacks is missed below
			}
		}
		_, err := os.Stat(filepath.Join(d, cpusFile))
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("look for the cpuset of a cgroup: %w: %w", errdefs.ErrUnavailable, err)
		}
	}
	return "", nil
}

// inherit fills the empty lists of a cgroup of version 1 with those of the one above it.
func inherit(above, dir string) error {
	if _, err := os.Stat(filepath.Join(above, "cgroup.controllers")); err == nil {
		return nil // version 2: an empty list means the same as above
	}
	for _, file := range []string{cpusFile, memsFile} {
		now, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, os.ErrNotExist) {
			return nil // a hierarchy of other controllers
		}
		if err != nil || strings.TrimSpace(string(now)) != "" {
			continue
		}
		list, err := os.ReadFile(filepath.Join(above, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), list, 0o644)
		}
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("fill the cpuset of a cgroup: %w: %w", errdefs.ErrUnavailable, err)
		}
	}
	return nil
}

// check compares the list with what the cgroup above has.
func (p cpusetPart) check(above string) error {
	asked, err := parseList(p.list)
	if err != nil {
		return fmt.Errorf("%s: %w", p.field, err)
	}
	for _, name := range p.effective {
		text, err := os.ReadFile(filepath.Join(above, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: read what this host has: %w: %w", p.field, errdefs.ErrUnavailable, err)
		}
		list := strings.TrimSpace(string(text))
		has, err := parseList(list)
		if err != nil {
			return fmt.Errorf("%s: read what this host has: %s: %w", p.field, name, err)
		}
		for _, n := range asked {
			if !slices.Contains(has, n) {
				return fmt.Errorf("%s: %q: this host has the %s %s for its VMs: name some of them, or leave it out: %w", p.field,
					p.list, p.what, list, errdefs.ErrInvalidArgument)
			}
		}
		return nil
	}
	return nil // a kernel that does not say refuses the write
}

// highest number that a list may have: Linux has at most 8192 CPUs and 1024 memory nodes.
const highest = 8191

// parseList reads a list such as 0-2,7.
func parseList(list string) (all []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, errFrom := strconv.Atoi(low)
		to, errTo := strconv.Atoi(high)
		if errFrom != nil || errTo != nil || from < 0 || to < from || to > highest {
			return nil, fmt.Errorf("%q is not a list such as 0-2,7: %w", list, errdefs.ErrInvalidArgument)
		}
		for n := from; n <= to; n++ {
			all = append(all, n)
		}
	}
	return all, nil
}
