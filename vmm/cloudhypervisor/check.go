package cloudhypervisor

import (
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// check refuses what is wrong for every VMM, and what this one has no choice of.
func check(cfg vmm.Config) error {
	if !filepath.IsAbs(cfg.Dir) {
		return invalid("directory %q is not absolute", cfg.Dir)
	}
	switch {
	case cfg.Machine != "":
		return invalid("machine %q: Cloud Hypervisor has one machine", cfg.Machine)
	case cfg.CPU != "" && cfg.CPU != cpuModel:
		return invalid("CPU %q: Cloud Hypervisor gives its guests the host's", cfg.CPU)
	case cfg.NVRAM != nil:
		return invalid("Cloud Hypervisor keeps no variables of a firmware")
	case (!cfg.Incoming || cfg.Reboots) && cfg.Kernel == "" && cfg.Firmware == nil:
		return invalid("neither kernel nor firmware: Cloud Hypervisor has no BIOS of its own")
	}
	return cfg.Check(controlPath(cfg.Dir), slotsOf(cfg))
}
