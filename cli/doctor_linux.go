package cli

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

// checkHost looks at what only Linux has.
func checkHost(ctx context.Context, cfg *config.Config) []finding {
	hypervisor, q := checkCloudHypervisor(ctx, cfg), checkQEMU(ctx, cfg)
	weigh(cfg.VMM.Kind, &hypervisor, &q)
	return []finding{hypervisor, q, checkUser(cfg), checkRAM(cfg), checkSwap(cfg), checkRunDir(cfg)}
}

// weigh makes fatal that the configured VMM does not run here. Where the host decides, one is
// enough; without any it is QEMU that is missed, which runs on every host.
func weigh(kind string, hypervisor, q *finding) {
	switch kind {
	case cloudhypervisor.Name:
		hypervisor.Fatal = !hypervisor.OK
	case qemu.Name:
		q.Fatal = !q.OK
	default:
		q.Fatal = !q.OK && !hypervisor.OK
	}
}

func checkQEMU(ctx context.Context, cfg *config.Config) finding {
	f := finding{Check: "vmm qemu"}
	driver, err := qemu.New(qemu.Driver{Binary: cfg.VMM.QEMU, DataDir: cfg.VMM.DataDir, Accel: cfg.VMM.Accel})
	if err == nil {
		facts, perr := driver.Probe(ctx)
		if err = perr; err == nil {
			f.OK, f.Detail = true, fmt.Sprintf("version %s, machine %s, %s (%s)", facts.Version, facts.Machine, facts.Accel,
				facts.Reason)
			return f
		}
	}
	f.Detail, f.Remedy = err.Error(), "install QEMU >= 7.2 (qemu-system-x86), or set vmm.qemu"
	return f
}

func checkCloudHypervisor(ctx context.Context, cfg *config.Config) finding {
	f := finding{Check: "vmm cloud-hypervisor"}
	facts, err := cloudhypervisor.New(cloudhypervisor.Driver{Binary: cfg.VMM.CloudHypervisor}).Probe(ctx)
	if err == nil {
		f.OK, f.Detail = true, fmt.Sprintf("version %s, %s (%s)", facts.Version, facts.Accel, facts.Reason)
		return f
	}
	f.Detail, f.Remedy = err.Error(), "install Cloud Hypervisor >= 53 on a host with KVM; without it VMs run in QEMU"
	return f
}

func checkRAM(cfg *config.Config) finding {
	f := finding{Check: "ram_dir"}
	var st unix.Statfs_t
	if err := unix.Statfs(cfg.RAMDir, &st); err != nil {
		f.Detail, f.Remedy = cfg.RAMDir+": "+err.Error(), "start godwitd, which mounts it"
		return f
	}
	if f.Detail, f.Remedy = ramFault(&st, uint64(cfg.RAMHugePages)); f.Detail != "" {
		f.Detail = cfg.RAMDir + " " + f.Detail
		return f
	}
	total, free := st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
	f.OK, f.Detail = true, fmt.Sprintf("%s, %s free of %s", cfg.RAMDir, screen.Bytes(free), screen.Bytes(total))
	return f
}

// ramFault says why no VM's RAM comes to that file system, and what helps. page is the size of the huge pages that are
// configured, 0: none. Empty: it is as configured.
func ramFault(st *unix.Statfs_t, page uint64) (detail, remedy string) {
	const mount = "start godwitd, which mounts it"
	switch ram, sized := rampool.Suits(st, page); {
	case !ram && page > 0:
		return "is no file system of huge pages", mount
	case !ram:
		return "is not a tmpfs", mount
	case !sized:
		return fmt.Sprintf("has no pages of %d KiB (ram_huge_pages)", page>>10), "end its VMs, unmount it and " + mount
	case page == 0 && st.Type == unix.HUGETLBFS_MAGIC:
		return "consists of huge pages, on which no VM sleeps or wakes",
			"set ram_huge_pages, or end its VMs, unmount it and " + mount
	}
	return "", ""
}
