package join

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/qemu"
)

// A node without the firmware that a VM disk is to boot by says which field wants what.
func TestFirmwareFor(t *testing.T) {
	there, gone := filepath.Join(t.TempDir(), "there.fd"), "/nowhere/gone.fd"
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const byKernel = "godwit.dev/kernel"
	for name, tt := range map[string]struct {
		vmm, boot       string
		code, vars, own string // of QEMU, and Cloud Hypervisor's
		firmware, nvram string
		refused         []string
	}{
		"kernel": {vmm: cloudhypervisor.Name, boot: spec.BootKernel},
		"UEFI":   {vmm: cloudhypervisor.Name, boot: spec.BootUEFI, own: there, firmware: there},
		"UEFI of QEMU": {vmm: qemu.Name, boot: spec.BootUEFI, code: there, vars: there, firmware: there,
			nvram: there},
		"BIOS of QEMU": {vmm: qemu.Name, boot: spec.BootBIOS},
		"BIOS of Cloud Hypervisor": {vmm: cloudhypervisor.Name, boot: spec.BootBIOS, own: there,
			refused: []string{"godwit.dev/firmware", "use uefi or QEMU", byKernel}},
		"no field of Cloud Hypervisor": {vmm: cloudhypervisor.Name, boot: spec.BootUEFI, code: there, vars: there,
			refused: []string{"set vmm.cloud_hypervisor_firmware", byKernel}},
		"no file of Cloud Hypervisor": {vmm: cloudhypervisor.Name, boot: spec.BootUEFI, own: gone,
			refused: []string{gone, "vmm.cloud_hypervisor_firmware", byKernel}},
		"no field of QEMU": {vmm: qemu.Name, boot: spec.BootUEFI, code: there, own: there,
			refused: []string{"set vmm.firmware and vmm.firmware_vars", byKernel}},
		"no file of QEMU, for its variables": {vmm: qemu.Name, boot: spec.BootUEFI, code: there, vars: gone,
			refused: []string{gone, "ovmf", "vmm.firmware_vars", byKernel}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.VMM.Firmware, cfg.VMM.FirmwareVars, cfg.VMM.CloudHypervisorFirmware = tt.code, tt.vars, tt.own
			firmware, nvram, err := firmwareFor(cfg, tt.vmm, tt.boot)
			if firmware != tt.firmware || nvram != tt.nvram {
				t.Errorf("got %q, %q", firmware, nvram)
			}
			if len(tt.refused) == 0 && err == nil {
				return
			}
			if len(tt.refused) == 0 || !errdefs.IsFailedPrecondition(err) {
				t.Fatalf("got %v", err)
			}
			for _, word := range tt.refused {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v: does not say %q", err, word)
				}
			}
			if tt.vmm == cloudhypervisor.Name && strings.Contains(err.Error(), "vmm.firmware") {
				t.Errorf("%v: names a field of QEMU's", err)
			}
		})
	}
}

// A VMM that this build does not know is taken for no other, whatever the disk boots by.
func TestFirmwareForAnUnknownVMM(t *testing.T) {
	for _, boot := range []string{spec.BootKernel, spec.BootBIOS, spec.BootUEFI} {
		for _, name := range []string{"", "other"} {
			if _, _, err := firmwareFor(config.Default(), name, boot); !errdefs.IsNotImplemented(err) ||
				!strings.Contains(err.Error(), `VMM "`+name+`"`) {
				t.Errorf("%q, %s: %v", name, boot, err)
			}
		}
	}
}
