package qemu

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/vmm"
)

var update = flag.Bool("update", false, "write the golden files again")

// TestLine compares whole command lines: what the guest sees of them is part of every
// snapshot, so that a change is never made by accident.
func TestLine(t *testing.T) {
	tests := map[string]func(*Driver, *vmm.Config) string{
		"boot-tcg": func(*Driver, *vmm.Config) string { return "tcg" },
		"boot-kvm": func(d *Driver, c *vmm.Config) string {
			d.DataDir = "/usr/share/other"
			c.CPU, c.Console = "", nil
			return "kvm"
		},
		"incoming": func(_ *Driver, c *vmm.Config) string {
			c.Incoming, c.Machine, c.CPU = true, "pc-q35-8.0", "qemu64"
			return "tcg"
		},
		"vmdisk-uefi": func(_ *Driver, c *vmm.Config) string {
			systemOfItsOwn(c)
			c.NICs = nil
			return "tcg"
		},
		"vmdisk-kernel-woken": func(_ *Driver, c *vmm.Config) string {
			kernel, initrd := c.Kernel, c.Initrd
			systemOfItsOwn(c)
			c.Kernel, c.Initrd, c.Cmdline, c.Firmware, c.NVRAM = kernel, initrd, "root=/dev/vda", nil, nil
			c.Incoming = true
			return "kvm"
		},
		"vmdisk-windows": func(_ *Driver, c *vmm.Config) string {
			systemOfItsOwn(c)
			c.HyperV, c.CPU = true, ""
			return "kvm"
		},
		"disk": func(_ *Driver, c *vmm.Config) string {
			c.Kernel, c.Initrd, c.Cmdline, c.NICs = "", "", "", nil
			return "tcg"
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			d := &Driver{Binary: "qemu-system-x86_64"}
			accel := change(d, &cfg)
			f, err := openFiles(cfg, filepath.Join(cfg.Dir, "qmp.sock"), true)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got := strings.Join(d.line(cfg, accel, f), "\n") + "\n"
			golden := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("line of %s (-want +got):\n%s", name, diff)
			}
		})
	}
}

// systemOfItsOwn makes c the VM of a disk that firmware boots.
func systemOfItsOwn(c *vmm.Config) {
	c.Kernel, c.Initrd, c.Cmdline, c.Console = "", "", "", nil
	c.Serial, c.Reboots = filepath.Join(c.Dir, "console.sock"), true
	c.Firmware, c.NVRAM = c.Disks[0].File, c.Disks[1].File
	c.Disks = c.Disks[1:]
}

// TestHyperVNeedsKVM: without it QEMU has none of it, and the guest runs all the same.
func TestHyperVNeedsKVM(t *testing.T) {
	if got := enlightenments(vmm.Config{HyperV: true}, "tcg"); got != "" {
		t.Errorf("without KVM: %q", got)
	}
}

// TestSlotsFit: 20 read-only disks, a writable one and as many NICs as there are ports
// fit, each at an address of its own.
func TestSlotsFit(t *testing.T) {
	cfg := testConfig(t)
	disk, nic := cfg.Disks[1], cfg.NICs[0]
	cfg.Disks, cfg.NICs = nil, nil
	for i := range 21 {
		disk.ID, disk.Slot = "d"+strconv.Itoa(i), FirstDiskSlot+i
		cfg.Disks = append(cfg.Disks, disk)
	}
	for slot := FirstNICSlot; slot <= LastNICSlot; slot++ {
		nic.ID, nic.Slot = "n"+strconv.Itoa(slot), slot
		cfg.NICs = append(cfg.NICs, nic)
	}
	control := filepath.Join(cfg.Dir, "qmp.sock")
	if err := cfg.Check(control, slots); err != nil {
		t.Fatal(err)
	}
	f, err := openFiles(cfg, control, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var taken []string
	for _, arg := range (&Driver{}).line(cfg, "tcg", f) {
		_, rest, ok := strings.Cut(arg, ",addr=0x")
		if !ok {
			continue
		}
		slot, _, _ := strings.Cut(rest, ",")
		if slices.Contains(taken, slot) {
			t.Errorf("slot %s is taken twice", slot)
		}
		taken = append(taken, slot)
	}
	if len(taken) != 2+4+21 {
		t.Errorf("%d devices have an address", len(taken))
	}
}
