package ring

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/kvm"
	"godwit.dev/godwit/vmm/qemu"
)

// reported is what a driver says of itself: by its facts, with KVM and without, and by the VMs that it refuses.
func reported(t *testing.T, name string) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	with, without := drivers(t, name, dir)
	facts, err := with.Probe(t.Context())
	if err != nil || facts.Name != name {
		t.Fatalf("facts of %s: %+v, %v", name, facts, err)
	}
	_, err = without.Probe(t.Context())
	all := map[string]bool{
		"hosts without KVM":                   err == nil,
		"lazy wake, chosen automatically":     facts.Waits,
		"page tracking directly after a wake": facts.Waits,
	}
	ram, err := os.Create(filepath.Join(dir, "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	plain := vmm.Config{
		Name: "vm", Dir: dir, Agent: filepath.Join(dir, "a"), Memory: 2 << 20, VCPUs: 1, RAM: ram, Kernel: "/k",
	}
	if err := ram.Truncate(int64(plain.Memory)); err != nil {
		t.Fatal(err)
	}
	bios, uefi := plain, plain
	bios.Kernel, uefi.Kernel, uefi.Firmware, uefi.NVRAM = "", "", ram, ram
	for what, cfg := range map[string]vmm.Config{
		"boot by a kernel": plain, "boot by BIOS": bios, "UEFI variables are kept": uefi,
	} {
		all[what] = !refuses(t, with, cfg)
	}
	return all
}

// refuses tells whether a driver refuses a VM before it looks for its program, which is not there.
func refuses(t *testing.T, d vmm.Driver, cfg vmm.Config) bool {
	t.Helper()
	switch d := d.(type) {
	case *qemu.Driver:
		d.Binary = "/no/such/program"
	case *cloudhypervisor.Driver:
		d.Binary = "/no/such/program"
	}
	_, err := d.Start(t.Context(), cfg)
	if err == nil {
		t.Fatal("a VM runs without a program")
	}
	return errdefs.IsInvalidArgument(err)
}

// drivers of a VMM whose program is a script: one that sees KVM, and one that sees none.
func drivers(t *testing.T, name, dir string) (with, without vmm.Driver) {
	t.Helper()
	binary := filepath.Join(dir, "vmm")
	says := map[string]string{
		qemu.Name: "QEMU emulator version 10.0.2", cloudhypervisor.Name: "cloud-hypervisor v53.0",
	}[name]
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho "+says+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if name == qemu.Name {
		d, err := qemu.New(qemu.Driver{Binary: binary, Accel: "tcg"})
		if err != nil {
			t.Fatal(err)
		}
		return d, d
	}
	if err := os.Mkdir(filepath.Join(dir, "kvm_amd"), 0o700); err != nil {
		t.Fatal(err)
	}
	host := kvm.Host{Device: os.DevNull, Modules: dir}
	none := kvm.Host{Device: os.DevNull, Modules: filepath.Join(dir, "none")}
	return cloudhypervisor.New(cloudhypervisor.Driver{Binary: binary, Host: host, AllowRoot: true}),
		cloudhypervisor.New(cloudhypervisor.Driver{Binary: binary, Host: none})
}
