package qemu

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

// Device state of DefaultMachine needs this version or a newer one.
const minMajor, minMinor = 7, 2

// probeTimeout bounds "qemu --version" under a context without a deadline.
const probeTimeout = 10 * time.Second

var versionLine = regexp.MustCompile(`^QEMU emulator version ((\d+)\.(\d+)(?:\.\d+)*)`)

// Probe asks the binary for its version and looks at KVM.
func (d *Driver) Probe(ctx context.Context) (vmm.Facts, error) {
	binary, err := exec.LookPath(d.Binary)
	if err != nil {
		return vmm.Facts{}, fmt.Errorf("there is no QEMU: %v. To have one, install qemu-system-x86, or set "+
			"vmm.qemu: %w", err, errdefs.ErrFailedPrecondition)
	}
	find := func() (string, error) { return d.version(ctx, binary) }
	var version string
	if d.Remember != nil {
		version, err = d.Remember("qemu version", []string{binary}, find)
	} else {
		version, err = find()
	}
	if err != nil {
		return vmm.Facts{}, fmt.Errorf("probe %s: %w", binary, err)
	}
	accel, reason, err := d.accel()
	if err != nil {
		return vmm.Facts{}, fmt.Errorf("probe %s: %w", binary, err)
	}
	machine, cpu := facts("", "", accel)
	return vmm.Facts{Name: Name, Version: version, Machine: machine, CPU: cpu, Accel: accel, Reason: reason,
		Overhead: overhead(accel), Waits: true}, nil
}

// overhead of a process: devices, buffers, threads; under TCG the translated code too.
func overhead(accel string) uint64 {
	if accel == "tcg" {
		return 128<<20 + translated<<20
	}
	return 128 << 20
}

func (d *Driver) version(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("it does not run, reinstall it: %w: %w", errdefs.ErrFailedPrecondition, err)
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("%.80q is no version of QEMU, set vmm.qemu to one: %w", out, errdefs.ErrFailedPrecondition)
	}
	major, errMajor := strconv.Atoi(string(found[2]))
	minor, errMinor := strconv.Atoi(string(found[3]))
	if err := errors.Join(errMajor, errMinor); err != nil {
		return "", fmt.Errorf("version %s: %w: %w", found[1], errdefs.ErrFailedPrecondition, err)
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return "", fmt.Errorf("version %s is too old, install %d.%d or newer: %w",
			found[1], minMajor, minMinor, errdefs.ErrFailedPrecondition)
	}
	return string(found[1]), nil
}

// accel decides between KVM and TCG, and says why.
func (d *Driver) accel() (accel, reason string, err error) {
	if d.Accel == "tcg" {
		return "tcg", "configured", nil
	}
	missing := d.host.Missing()
	switch {
	case missing == nil:
		return "kvm", "KVM works", nil
	case d.Accel == "kvm":
		return "", "", fmt.Errorf("KVM does not work here: %w. To have it, load kvm_intel or kvm_amd. To do without: "+
			"vmm.accel = \"tcg\": %w", missing, errdefs.ErrFailedPrecondition)
	}
	return "tcg", missing.Error(), nil
}
