// Package kvm tells whether KVM runs VMs on this host.
package kvm

import (
	"errors"
	"os"
	"path/filepath"
)

// Host is where the kernel shows what it has; tests put other files there.
type Host struct{ Device, Modules string }

// Default is this host.
var Default = Host{Device: "/dev/kvm", Modules: "/sys/module"}

// Missing says what KVM lacks. That /dev/kvm opens is not enough: a KVM that needs
// guests made for it accepts a VM and then never runs its kernel.
func (h Host) Missing() error {
	f, err := os.OpenFile(h.Device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	f.Close()
	for _, module := range []string{"kvm_intel", "kvm_amd"} {
		if _, err := os.Stat(filepath.Join(h.Modules, module)); err == nil {
			return nil
		}
	}
	return errors.New("neither kvm_intel nor kvm_amd is loaded")
}
