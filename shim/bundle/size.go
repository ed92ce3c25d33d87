package bundle

import (
	"fmt"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
)

// guestOverhead is what the guest's kernel and agent get in addition to the container's limit.
const guestOverhead = 128 << 20

const defaultPeriod = 100_000 // microseconds, the kernel's

// memorySize is the RAM of the VM: annotation, else limit + what the guest's kernel and agent
// need in addition, else config.
func memorySize(annotated, overhead uint64, oci *specs.Spec, cfg *config.Config) (uint64, error) {
	size := annotated
	if size == 0 {
		size = uint64(cfg.VM.Memory)
		if limit := memoryLimit(oci); limit > 0 {
			if limit > uint64(config.MaxVM)-overhead {
				return 0, fmt.Errorf("linux.resources.memory.limit: %d bytes is more than a VM can have (%s): %w", limit,
					config.MaxVM, errdefs.ErrInvalidArgument)
			}
			size = max(limit+overhead, uint64(config.MinVM))
		}
	}
	page := uint64(config.PageSize)
	return (size + page - 1) / page * page, nil
}

func memoryLimit(oci *specs.Spec) uint64 {
	r := oci.Linux.Resources
	if r == nil || r.Memory == nil || r.Memory.Limit == nil || *r.Memory.Limit <= 0 {
		return 0
	}
	return uint64(*r.Memory.Limit)
}

// vcpuCount is annotation, else the CPU quota rounded up, else 1.
func vcpuCount(annotated int, oci *specs.Spec) (int, error) {
	if annotated != 0 {
		return annotated, nil
	}
	r := oci.Linux.Resources
	if r == nil || r.CPU == nil || r.CPU.Quota == nil || *r.CPU.Quota <= 0 {
		return 1, nil
	}
	quota, period := uint64(*r.CPU.Quota), uint64(defaultPeriod)
	if r.CPU.Period != nil && *r.CPU.Period != 0 {
		period = *r.CPU.Period
	}
	n := quota / period
	if quota%period != 0 {
		n++
	}
	if n > maxVCPUs {
		return 0, fmt.Errorf("linux.resources.cpu.quota: it asks for %d CPUs, a VM has at most %d: %w", n, maxVCPUs,
			errdefs.ErrInvalidArgument)
	}
	return int(n), nil
}
