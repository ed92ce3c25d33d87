package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Cost is what a cgroup of the host says of a VM. Memory is in bytes.
type Cost struct {
	Own      uint64   // without files: what VMM, shim and kernel take in addition to RAM and page cache
	Used     uint64   // all
	Limit    uint64   // 0: none
	CPU      uint64   // microseconds
	Anon     uint64   // without page cache and RAM file
	Inactive uint64   // page cache that the kernel gives up first
	PerCPU   []uint64 // nanoseconds; cgroup v1 alone
	OOMKills uint64
}

// CostOf reads both versions of cgroups. What is not there is 0, as of a cgroup that has gone; what
// cannot be read is an error.
func CostOf(dirs []string) (c Cost, err error) {
	for _, d := range dirs {
		read := func(name string) string {
			data, failed := os.ReadFile(filepath.Join(d, name))
			if failed != nil && !errors.Is(failed, os.ErrNotExist) && !errors.Is(failed, unix.ENODEV) {
				err = fmt.Errorf("read what the VM costs: %w: %w", errdefs.ErrUnavailable, failed)
			}
			return string(data)
		}
		stat := read("memory.stat")
		c.Used += Number(read("memory.usage_in_bytes")) + Number(read("memory.current"))
		c.Limit += Number(read("memory.limit_in_bytes")) + Number(read("memory.max"))
		files := value(stat, "cache") + value(stat, "file")
		if stat != "" && c.Used > files {
			c.Own = c.Used - files
		}
		c.Anon += value(stat, "rss") + value(stat, "anon")
		c.Inactive += value(stat, "inactive_file")
		c.CPU = max(c.CPU, Number(read("cpuacct.usage"))/1000+value(read("cpu.stat"), "usage_usec"))
		for _, f := range strings.Fields(read("cpuacct.usage_percpu")) {
			c.PerCPU = append(c.PerCPU, Number(f))
		}
		c.OOMKills += value(read("memory.oom_control"), "oom_kill") + value(read("memory.events"), "oom_kill")
	}
	return c, err
}

// Number of a file that holds one; "max" is 0.
func Number(text string) uint64 {
	n, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return n
}

// value of a name in lines of "name number".
func value(text, name string) uint64 {
	for line := range strings.Lines(text) {
		if key, v, ok := strings.Cut(line, " "); ok && key == name {
			return Number(v)
		}
	}
	return 0
}
