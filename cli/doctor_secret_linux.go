package cli

import (
	"fmt"
	"os"
	"strings"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/vmm/process"
)

// checkUser says whom VMMs run as, with which rights, and why that cannot be.
func checkUser(cfg *config.Config) finding {
	f := finding{Check: "vmm user"}
	if err := cfg.VMM.CheckUser(); err != nil {
		f.Fatal, f.Detail, f.Remedy = true, err.Error(), "set vmm.first_user to a user from 1000 on, or vmm.allow_root = true"
		return f
	}
	device := checkedDevice
	if _, err := os.Stat(device); err != nil {
		device = ""
	}
	if err := process.Confinable(cfg.VMM.FirstUser, device); err != nil {
		f.Fatal, f.Detail = true, err.Error()
		f.Remedy = "run as root with CAP_SYS_ADMIN, CAP_MKNOD, CAP_SETUID and CAP_SETPCAP, on Linux 5.12 or later"
		return f
	}
	const rights = "no capabilities, namespaces of pids, mounts and IPC of its own"
	if cfg.VMM.FirstUser == 0 {
		f.Detail, f.Remedy = "each is root, with "+rights+" (vmm.first_user is 0, vmm.allow_root is true)",
			"set vmm.first_user to a user from 1000 on"
		return f
	}
	f.OK, f.Detail = true, fmt.Sprintf("each is a user of its own from %d on (vmm.first_user), with %s", cfg.VMM.FirstUser,
		rights)
	return f
}

// checkedDevice is what a VMM gets a node of.
const checkedDevice = "/dev/kvm"

// checkSwap says whether the RAM of VMs may come to a disk by swap.
func checkSwap(cfg *config.Config) finding {
	table, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return finding{Check: "ram swap", Detail: err.Error(), Remedy: "mount /proc"}
	}
	swaps, err := rampool.Swaps(cfg.RAMDir)
	return swapFinding(strings.Count(string(table), "\n") > 1, swaps, rampool.CanForbidSwap(), err)
}

// swapFinding: active, whether the host has swap; swaps, whether RAM goes there, unless err says that this is unknown;
// can, whether the kernel can forbid it.
func swapFinding(active, swaps, can bool, err error) finding {
	f := finding{Check: "ram swap", OK: true, Detail: "the RAM of VMs is never swapped out"}
	switch {
	case err != nil:
		f.OK, f.Detail, f.Remedy = false, err.Error(), "start godwitd, which mounts ram_dir"
	case !swaps:
	case !active:
		f.Detail = "the RAM of VMs could be swapped out (ram_dir is mounted without noswap), but the host has no swap"
	default:
		f.OK, f.Detail = false, "the RAM of VMs may be swapped out, to a disk: ram_dir is mounted without noswap"
		f.Remedy = "turn swap off or encrypt it; Linux 6.4 or later can keep RAM from it"
		if can {
			f.Remedy = "end its VMs, unmount ram_dir and start godwitd, which mounts it with noswap; or turn swap off"
		}
	}
	return f
}
