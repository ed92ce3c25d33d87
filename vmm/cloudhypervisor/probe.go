package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

// minMajor is the oldest version that keeps what godwit needs of a paused VM: block
// requests drained, clocks moved on, fixed slots.
const minMajor = 53

// majors is how many older major versions made device state that this one takes: upstream's CI wakes state of the last
// release, and changes of the API are announced two releases before.
const majors = 2

// cpuModel is what every guest gets: the host's features, which a snapshot records.
const cpuModel = "host"

// overhead of a process: it has a few MiB of its own; its devices and threads are few.
const overhead = 128 << 20

// probeTimeout bounds "cloud-hypervisor --version" under a context without a deadline.
const probeTimeout = 10 * time.Second

// versionLine is of a release, or of a build so many commits after one.
var versionLine = regexp.MustCompile(`^cloud-hypervisor v?(\d+\.\d+(?:\.\d+)*)(?:-(\d+)-g[0-9a-f]+)?`)

// Probe asks the binary for its version and looks at KVM.
func (d *Driver) Probe(ctx context.Context) (vmm.Facts, error) {
	binary, err := exec.LookPath(d.Binary)
	if err != nil {
		return vmm.Facts{}, fmt.Errorf("there is no Cloud Hypervisor: %v. To have one, install version %d or newer, or set "+
			"vmm.cloud_hypervisor: %w", err, minMajor, errdefs.ErrFailedPrecondition)
	}
	if missing := d.Host.Missing(); missing != nil {
		return vmm.Facts{}, fmt.Errorf("KVM does not work here: %w. To have it, load kvm_intel or kvm_amd. To do "+
			"without: vmm.kind "+
			"= \"qemu\": %w", missing, errdefs.ErrFailedPrecondition)
	}
	version, err := d.Remember("cloud-hypervisor version", []string{binary}, func() (string, error) {
		return probeVersion(ctx, binary)
	})
	if err != nil {
		return vmm.Facts{}, fmt.Errorf("probe %s: %w", binary, err)
	}
	reason := "KVM works"
	if !d.landlock() {
		reason += ", the kernel has no landlock"
	}
	return vmm.Facts{
		Name: Name, Version: version, CPU: cpuModel, Accel: "kvm", Reason: reason, Overhead: overhead,
		BareTemplates: true, Majors: majors, Waits: hasLeases(ctx),
	}, nil
}

func probeVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("it does not run, reinstall it: %w: %w", errdefs.ErrFailedPrecondition, err)
	}
	found := versionLine.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("%.80q is no version of Cloud Hypervisor: %w", out, errdefs.ErrFailedPrecondition)
	}
	if _, err := major(string(found[1])); err != nil {
		return "", err
	}
	if len(found[2]) > 0 {
		return string(found[1]) + "." + string(found[2]), nil // newer than the release: its state may be, too
	}
	return string(found[1]), nil
}

var leadingNumber = regexp.MustCompile(`^v?(\d{1,6})(?:\.|$)`)

// major is the first number of a version that is new enough.
func major(version string) (int, error) {
	found := leadingNumber.FindStringSubmatch(version)
	if found == nil {
		return 0, fmt.Errorf("version %q has no number: %w", version, errdefs.ErrFailedPrecondition)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		return 0, errors.Join(err, errdefs.ErrFailedPrecondition)
	}
	if n < minMajor {
		return 0, fmt.Errorf("version %s is too old, install %d or newer: %w", version, minMajor,
			errdefs.ErrFailedPrecondition)
	}
	return n, nil
}

// landlockABI is the oldest that Cloud Hypervisor takes.
const landlockABI = 3

func hasLandlock() bool {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0 && abi >= landlockABI
}
