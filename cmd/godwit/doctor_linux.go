package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

// checkHost looks at what only Linux has.
func checkHost(ctx context.Context, cfg *config.Config) []finding {
	return []finding{checkCloudHypervisor(ctx, cfg), checkQEMU(ctx, cfg), checkRAM(cfg)}
}

func checkQEMU(ctx context.Context, cfg *config.Config) finding {
	f := finding{Check: "vmm qemu"}
	driver, err := qemu.New(qemu.Driver{Binary: cfg.VMM.QEMU, DataDir: cfg.VMM.DataDir, Accel: cfg.VMM.Accel})
	if err == nil {
		facts, perr := driver.Probe(ctx)
		if err = perr; err == nil {
			f.OK, f.Detail = true, fmt.Sprintf("version %s, machine %s, %s (%s)", facts.Version, facts.Machine, facts.Accel, facts.Reason)
			return f
		}
	}
	f.Fatal = cfg.VMM.Kind != cloudhypervisor.Name
	f.Detail, f.Remedy = err.Error(), "install QEMU >= 7.2 (qemu-system-x86), or set vmm.qemu"
	return f
}

// checkCloudHypervisor is fatal where nothing else is allowed: QEMU stands in for it.
func checkCloudHypervisor(ctx context.Context, cfg *config.Config) finding {
	f := finding{Check: "vmm cloud-hypervisor"}
	facts, err := cloudhypervisor.New(cloudhypervisor.Driver{Binary: cfg.VMM.CloudHypervisor}).Probe(ctx)
	if err == nil {
		f.OK, f.Detail = true, fmt.Sprintf("version %s, %s (%s)", facts.Version, facts.Accel, facts.Reason)
		return f
	}
	f.Fatal = cfg.VMM.Kind == cloudhypervisor.Name
	f.Detail, f.Remedy = err.Error(), "install Cloud Hypervisor >= 53 on a host with KVM; without it VMs run in QEMU"
	return f
}

// tmpfsMagic is TMPFS_MAGIC of linux/magic.h.
const tmpfsMagic = 0x01021994

func checkRAM(cfg *config.Config) finding {
	f := finding{Check: "ram_dir"}
	var st unix.Statfs_t
	if err := unix.Statfs(cfg.RAMDir, &st); err != nil {
		f.Detail, f.Remedy = cfg.RAMDir+": "+err.Error(), "start godwitd, which mounts it"
		return f
	}
	if st.Type != tmpfsMagic {
		f.Detail, f.Remedy = cfg.RAMDir+" is not a tmpfs", "start godwitd, which mounts it"
		return f
	}
	total, free := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
	f.OK, f.Detail = true, fmt.Sprintf("%s, %s free of %s", cfg.RAMDir, mib(free), mib(total))
	return f
}
