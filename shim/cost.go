package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/format"
)

// shimOverhead is the memory of a shim, its holder and its loggers.
const shimOverhead = 64 << 20

// memoryCap is what the whole VM may take on its host: RAM, and what it costs beside it.
func (vm *VM) memoryCap() uint64 {
	ram, cfg := vm.spec().Memory, vm.host.Config
	if cfg.VM.Overhead != 0 {
		return ram + uint64(cfg.VM.Overhead)
	}
	tables := ram / 64 // of the VMM's mapping and of the file, twice what they are
	// A worker's garbage collector may let its buffers grow to twice their size.
	return ram + tables + vm.overhead + shimOverhead + 2*uint64(cfg.Worker.Memory) + pageCost(vm.spec())
}

// pageCost is what a worker knows about the pages of a VM.
func pageCost(sp *spec.Spec) uint64 {
	bytes := sp.Memory
	for _, d := range sp.Disks {
		if !d.ReadOnly {
			bytes += uint64(d.Size)
		}
	}
	return bytes / format.PageSize * snapshot.PageCost
}

// enter makes the task's cgroup and moves the shim into it: what it starts from here on
// is there too. A cgroup that was there before has the limit that its owner gave it.
func (c *creation) enter(context.Context, *undo) error {
	j := c.vm.noted()
	if err := makeCgroup(j.Cgroup); err != nil {
		return err
	}
	if len(j.Private) > 0 {
		err := limitMemory(j.Private, c.vm.memoryCap())
		if errors.Is(err, os.ErrNotExist) {
			c.vm.log.Warn("the VM has no memory limit on this host", "error", err)
		} else if err != nil {
			return err
		}
	}
	return join(j.Cgroup, os.Getpid())
}

// cost is what a cgroup of the host says of a VM. Memory is in bytes.
type cost struct {
	own      uint64   // without files: what VMM, shim and kernel take beside RAM and page cache
	used     uint64   // all
	limit    uint64   // 0: none
	cpu      uint64   // microseconds
	perCPU   []uint64 // nanoseconds; cgroup v1 alone
	oomKills uint64
}

// costOf reads both versions of cgroups. What is not there is 0, as of a cgroup that has gone; what
// cannot be read is an error.
func costOf(dirs []string) (c cost, err error) {
	for _, d := range dirs {
		read := func(name string) string {
			data, failed := os.ReadFile(filepath.Join(d, name))
			if failed != nil && !errors.Is(failed, os.ErrNotExist) && !errors.Is(failed, unix.ENODEV) {
				err = fmt.Errorf("read what the VM costs: %w: %w", errdefs.ErrUnavailable, failed)
			}
			return string(data)
		}
		stat := read("memory.stat")
		c.used += number(read("memory.usage_in_bytes")) + number(read("memory.current"))
		c.limit += number(read("memory.limit_in_bytes")) + number(read("memory.max"))
		files := value(stat, "cache") + value(stat, "file")
		if stat != "" && c.used > files {
			c.own = c.used - files
		}
		c.cpu = max(c.cpu, number(read("cpuacct.usage"))/1000+value(read("cpu.stat"), "usage_usec"))
		for _, f := range strings.Fields(read("cpuacct.usage_percpu")) {
			c.perCPU = append(c.perCPU, number(f))
		}
		c.oomKills += value(read("memory.oom_control"), "oom_kill") + value(read("memory.events"), "oom_kill")
	}
	return c, err
}

// number of a file that holds one; "max" is 0.
func number(text string) uint64 {
	n, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return n
}

// value of a name in lines of "name number".
func value(text, name string) uint64 {
	for line := range strings.Lines(text) {
		if key, v, ok := strings.Cut(line, " "); ok && key == name {
			return number(v)
		}
	}
	return 0
}
