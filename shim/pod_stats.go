package shim

import (
	"os"

	"github.com/containerd/cgroups/v3"

	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
)

// figures of the sandbox are what VM and shim cost the host. Those of its containers are the guest's.
func (p *pod) figures(j *journal.Journal) (any, error) {
	c, err := cgroup.CostOf(j.Private)
	if err != nil {
		return nil, err
	}
	used, err := p.vm.hostCPU()
	if err != nil {
		return nil, err
	}
	c.CPU = max(c.CPU, used)
	if c.Used == 0 { // no cgroup of the VM's own counts memory
		if c.Used, err = p.vm.hostMemory(); err != nil {
			return nil, err
		}
	}
	limit := c.Limit
	if most := p.vm.memoryCap(); limit == 0 || limit > most {
		limit = most
	}
	f := cgroup.PodFigures{Cost: c, Limit: max(limit, c.Used)}
	if cgroups.Mode() == cgroups.Unified {
		return f.V2(), nil
	}
	return f.V1(), nil
}

// hostMemory is what the VMM has in the host's memory, in bytes.
func (vm *VM) hostMemory() (uint64, error) {
	f, err := vm.procStats()
	if err != nil || len(f) < rssField+1 {
		return 0, err
	}
	return cgroup.Number(f[rssField]) * uint64(os.Getpagesize()), nil
}

// rssField is the place of the resident pages in what procStats answers: field 24 of proc(5), without the first two.
const rssField = 21
