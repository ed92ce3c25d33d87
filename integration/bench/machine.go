package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu"
)

// identify notes what is measured, and on what.
func (b *bench) identify(ctx context.Context) (vmm.Facts, error) {
	root, err := harness.Root()
	if err != nil {
		return vmm.Facts{}, err
	}
	driver, err := qemu.New(qemu.Driver{})
	if err != nil {
		return vmm.Facts{}, err
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return facts, err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return facts, err
	}
	b.result.Machine = Machine{
		CPUs: runtime.NumCPU(), Kernel: unix.ByteSliceToString(u.Release[:]),
		VMM: facts.Name + " " + facts.Version, Accel: facts.Accel, Go: runtime.Version(), LoadBefore: load(),
		Containerd: firstLine(ctx, filepath.Join(root, "bin/tools/containerd"), "--version"),
		Godwit:     firstLine(ctx, filepath.Join(root, "bin/godwit"), "version"),
	}
	b.result.Commit = firstLine(ctx, "git", "-C", root, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
	guest, err := os.ReadFile(filepath.Join(root, "bin/guest/version"))
	if err != nil {
		return facts, fmt.Errorf("make guest first: %w", err)
	}
	for line := range strings.Lines(string(guest)) {
		if v, ok := strings.CutPrefix(line, "kernel "); ok {
			b.result.Machine.GuestKernel = strings.TrimSpace(v)
		}
	}
	return facts, nil
}

// kernel answers the paths and the command line that every VM here boots with, bare or
// not: the ones that godwit uses.
func kernel(root string) (vmlinuz, initrd, cmdline string, err error) {
	cfg := &config.Config{Guest: config.Guest{
		Kernel: filepath.Join(root, "bin/guest/vmlinuz"), Initrd: filepath.Join(root, "bin/guest/initramfs"),
		Cmdline: noBounce,
	}}
	k, err := shim.GuestKernel(cfg)
	return cfg.Guest.Kernel, cfg.Guest.Initrd, k.Cmdline, err
}

// firstLine of what a program says; empty, which fails the check, if it says nothing.
func firstLine(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// load of the last minute; nil if it cannot be read.
func load() *float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(data), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return nil
	}
	return &v
}
