package shim

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/format"
)

// shimOverhead is the memory of a shim, its holder and its loggers.
const shimOverhead = 64 << 20

// memoryCap is what the whole VM may take on its host: RAM, and what the VM costs in addition to it.
func (vm *VM) memoryCap() uint64 {
	ram, cfg := vm.spec().Memory, vm.host.Config
	if cfg.VM.Overhead != 0 {
		return ram + uint64(cfg.VM.Overhead)
	}
	tables := ram / 64 // of the VMM's mapping and of the file, twice what they are
	// A worker's garbage collector may let its buffers grow to twice their size.
	return ram + tables + vm.vmm.facts().Overhead + shimOverhead + 2*uint64(cfg.Worker.Memory) + pageCost(vm.spec())
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
func (c *creation) enter(context.Context, *steps.Undo) error {
	j := c.vm.journal.Load()
	if err := cgroup.Make(j.Cgroup); err != nil {
		return err
	}
	if c.bundle.Spec.Pod != nil {
		if err := c.vm.pod.fitsCgroup(cgroup.Room(j.Cgroup)); err != nil {
			return err
		}
	}
	if len(j.Private) > 0 {
		err := cgroup.LimitMemory(j.Private, c.vm.memoryCap())
		if errors.Is(err, os.ErrNotExist) {
			c.vm.log.Warn("the VM has no memory limit on this host", "error", err)
		} else if err != nil {
			return err
		}
	}
	if err := cgroup.Pin(j.Cgroup, j.Private, c.cpuset()); err != nil {
		return err
	}
	return cgroup.Join(j.Cgroup, os.Getpid())
}

// cpuset is what the container asks of this host. No other node is asked for it: the Spec does not have it.
func (c *creation) cpuset() cgroup.Cpuset {
	return cgroup.Cpuset{CPUs: c.bundle.CPUs, Mems: c.bundle.Mems}
}

// fitsCgroup refuses a limit of the pod's cgroup that leaves no room for VMM and shim. The kernel would kill them, and
// a kubelet would see a closed connection. What the containers use comes in addition.
func (p *pod) fitsCgroup(limit uint64, of string, err error) error {
	if err != nil {
		return err
	}
	need := p.vm.vmm.facts().Overhead + shimOverhead
	if limit >= need {
		return nil
	}
	return fmt.Errorf("cgroup %s limits the pod to %s of memory, and VMM and shim alone need %s, without what "+
		"its containers use: give the RuntimeClass an overhead (overhead.podFixed.memory), or the containers higher "+
		"limits: %w", of, config.Size(limit), config.Size(need), errdefs.ErrResourceExhausted)
}
