package agentd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// cgroup is a container's, or the pod's: a directory of cgroup v2.
type cgroup string

// controllers that the container's cgroup has.
const controllers = "+cpuset +cpu +io +memory +pids"

// makeCgroup makes one below another, in which no process is.
func makeCgroup(parent cgroup, name string) (cgroup, error) {
	for _, c := range strings.Fields(controllers) { // each alone: a kernel may lack one
		_ = os.WriteFile(filepath.Join(string(parent), "cgroup.subtree_control"), []byte(c), 0)
	}
	dir := filepath.Join(string(parent), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make cgroup: %w", err)
	}
	return cgroup(dir), nil
}

func (c cgroup) write(name, value string) error {
	if err := os.WriteFile(filepath.Join(string(c), name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return nil
}

func (c cgroup) join(pid int) error { return c.write("cgroup.procs", strconv.Itoa(pid)) }

// signalAll signals every process of the container.
func (c cgroup) signalAll(sig unix.Signal) error {
	if sig == unix.SIGKILL {
		return c.write("cgroup.kill", "1")
	}
	return filepath.WalkDir(string(c), func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // a cgroup that went away meanwhile
		}
		if err != nil {
			return fmt.Errorf("signal all: %w", err)
		}
		if d.Name() != "cgroup.procs" {
			return nil
		}
		return signalMembers(func() ([]int, error) { return members(path) }, sig)
	})
}

// members of one cgroup. A threaded one has none of its own: they are above.
func members(path string) (pids []int, err error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, f := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// maxPids bounds what one answer lists.
const maxPids = 1 << 16

// pids of the container's processes, also in cgroups that it has made. There are none before a container.
func (c cgroup) pids() (map[uint32]bool, error) {
	all := make(map[uint32]bool)
	if c == "" {
		return all, nil
	}
	return all, filepath.WalkDir(string(c), func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // a cgroup that went away meanwhile
		}
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		if d.Name() != "cgroup.procs" {
			return nil
		}
		pids, err := members(path)
		for _, pid := range pids[:min(len(pids), maxPids-len(all))] {
			all[uint32(pid)] = true
		}
		return err
	})
}

// signalMembers signals those that list answers. A pid may be another's as soon as it was read: one
// that is listed still once a descriptor holds its process is no other one.
func signalMembers(list func() ([]int, error), sig unix.Signal) error {
	pids, err := list()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := signalMember(pid, list, sig); err != nil && err != unix.ESRCH {
			return fmt.Errorf("signal %d: %w", pid, err)
		}
	}
	return nil
}

func signalMember(pid int, list func() ([]int, error), sig unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := list()
	if err != nil || !slices.Contains(now, pid) {
		return err
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// apply sets limits; those not named stay. Devices are not limited: the machine is the
// container's own.
func (c cgroup) apply(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	if err := refuseResources(r); err != nil {
		return err
	}
	settings, err := translate(r)
	if err != nil {
		return err
	}
	if m := r.Memory; m != nil && m.CheckBeforeUpdate != nil && *m.CheckBeforeUpdate && m.Limit != nil && *m.Limit > 0 {
		used, err := c.value("memory.current")
		if err != nil {
			return err
		}
		if used > uint64(*m.Limit) {
			return fmt.Errorf("linux.resources.memory.limit: %d bytes are less than the %d in use: %w", *m.Limit, used,
				errdefs.ErrFailedPrecondition)
		}
	}
	for _, s := range settings {
		err := c.write(s.name, s.value)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrNotExist) && s.optional:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("linux.resources: %w: %w", err, errdefs.ErrInvalidArgument)
		default:
			return fmt.Errorf("linux.resources: %w", err)
		}
	}
	return nil
}

func refuseResources(r *specs.LinuxResources) error {
	var what string
	switch {
	case r.BlockIO != nil && !reflect.DeepEqual(*r.BlockIO, specs.LinuxBlockIO{}):
		what = "blockIO"
	case r.Network != nil && (r.Network.ClassID != nil || len(r.Network.Priorities) > 0):
		what = "network"
	case len(r.Rdma) > 0:
		what = "rdma"
	}
	for _, h := range r.HugepageLimits {
		if h.Limit != 0 {
			what = "hugepageLimits"
		}
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("linux.resources.%s in a guest: %w", what, errdefs.ErrNotImplemented)
}

// setting is one file of a cgroup.
type setting struct {
	name, value string
	optional    bool // may be missing: the kernel has no swap accounting
}

func translate(r *specs.LinuxResources) (list []setting, err error) {
	if m := r.Memory; m != nil {
		list, err = memorySettings(m, r.Unified)
		if err != nil {
			return nil, err
		}
	}
	if c := r.CPU; c != nil {
		list = append(list, cpuSettings(c)...)
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit != 0 {
		list = append(list, setting{name: "pids.max", value: limit(*p.Limit)})
	}
	for name, value := range r.Unified {
		if strings.ContainsRune(name, '/') || !strings.Contains(name, ".") {
			return nil, fmt.Errorf("linux.resources.unified: bad name %q: %w", name, errdefs.ErrInvalidArgument)
		}
		list = append(list, setting{name: name, value: value})
	}
	return list, nil
}

func limit(n int64) string {
	if n < 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func memorySettings(m *specs.LinuxMemory, unified map[string]string) (list []setting, err error) {
	if m.Swap != nil && *m.Swap != 0 {
		swap := *m.Swap // v1 counts memory and swap together
		if swap > 0 && (m.Limit == nil || *m.Limit <= 0) {
			return nil, fmt.Errorf("linux.resources.memory.swap %d needs a memory limit too, which it includes: %w", *m.Swap,
				errdefs.ErrInvalidArgument)
		}
		if swap > 0 && m.Limit != nil {
			swap -= *m.Limit
			if swap < 0 {
				return nil, fmt.Errorf("linux.resources.memory.swap %d is below the limit %d: %w", *m.Swap, *m.Limit,
					errdefs.ErrInvalidArgument)
			}
		}
		list = append(list, setting{name: "memory.swap.max", value: limit(swap), optional: true})
	}
	if m.Limit != nil && *m.Limit != 0 {
		list = append(list, setting{name: "memory.max", value: limit(*m.Limit)})
		// One process killed for memory takes the container with it: exit 137, not a
		// container that limps on.
		if _, ok := unified["memory.oom.group"]; !ok {
			list = append(list, setting{name: "memory.oom.group", value: "1"})
		}
	}
	if m.Reservation != nil && *m.Reservation != 0 {
		list = append(list, setting{name: "memory.low", value: limit(*m.Reservation)})
	}
	return list, nil
}

func cpuSettings(c *specs.LinuxCPU) (list []setting) {
	if c.Shares != nil && *c.Shares != 0 {
		shares := min(max(*c.Shares, 2), 262144)
		list = append(list, setting{name: "cpu.weight", value: strconv.FormatUint(1+(shares-2)*9999/262142, 10)})
	}
	if c.Quota != nil && *c.Quota != 0 || c.Period != nil && *c.Period != 0 {
		quota, period := "max", uint64(100000)
		if c.Quota != nil && *c.Quota > 0 {
			quota = strconv.FormatInt(*c.Quota, 10)
		}
		if c.Period != nil && *c.Period != 0 {
			period = *c.Period
		}
		list = append(list, setting{name: "cpu.max", value: fmt.Sprintf("%s %d", quota, period)})
	}
	if c.Burst != nil && *c.Burst != 0 {
		list = append(list, setting{name: "cpu.max.burst", value: strconv.FormatUint(*c.Burst, 10)})
	}
	if c.Idle != nil {
		list = append(list, setting{name: "cpu.idle", value: strconv.FormatInt(*c.Idle, 10)})
	}
	if c.Cpus != "" {
		list = append(list, setting{name: "cpuset.cpus", value: c.Cpus})
	}
	if c.Mems != "" {
		list = append(list, setting{name: "cpuset.mems", value: c.Mems})
	}
	return list
}

func parseResources(data []byte) (*specs.LinuxResources, error) {
	if len(data) == 0 {
		return nil, nil
	}
	r := new(specs.LinuxResources)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read resources: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return r, nil
}

// read reads a file. One that is missing is empty: its cgroup has gone, or the kernel lacks the controller.
func (c cgroup) read(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(string(c), name))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return "", fmt.Errorf("read %s of cgroup: %w: %w", name, err, errdefs.ErrUnavailable)
	}
	return string(data), nil
}

// value reads a file with one number; "max" and what is missing are 0.
func (c cgroup) value(name string) (uint64, error) {
	data, err := c.read(name)
	n, _ := strconv.ParseUint(strings.TrimSpace(data), 10, 64)
	return n, err
}

// table reads a file of lines "name number".
func (c cgroup) table(name string) (map[string]uint64, error) {
	m := make(map[string]uint64)
	data, err := c.read(name)
	for line := range strings.Lines(data) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			m[k], _ = strconv.ParseUint(v, 10, 64)
		}
	}
	return m, err
}

// oomKills only says why a process has ended: what cannot be read is 0.
func (c cgroup) oomKills() uint64 {
	events, _ := c.table("memory.events")
	return events["oom_kill"]
}
