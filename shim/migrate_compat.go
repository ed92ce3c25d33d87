package shim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/vmm"
)

// factsOf says what device state made here depends on.
func factsOf(f vmm.Facts, kernel string) snapshot.Facts {
	out := snapshot.Facts{VMM: f.Name, Version: f.Version, Machine: f.Machine, Accel: f.Accel, CPU: f.CPU, Kernel: kernel}
	if f.CPU == "host" {
		out.Features = cpuFeatures()
	}
	return out
}

// compatible says whether state made under was runs under is. That VMM takes state of so many older major versions; 0
// is of each. The host's kernel is recorded for people; it does not decide.
func compatible(was, is snapshot.Facts, majors int) error {
	for _, f := range []struct{ name, was, is string }{
		{"VMM", was.VMM, is.VMM}, {"machine", was.Machine, is.Machine},
		{"acceleration", was.Accel, is.Accel}, {"CPU model", was.CPU, is.CPU},
	} {
		if f.was != f.is {
			return fmt.Errorf("its %s is %q, this node has %q: %w", f.name, f.was, f.is, errdefs.ErrFailedPrecondition)
		}
	}
	if olderVersion(is.Version, was.Version) {
		return fmt.Errorf("it was made by %s %s, this node has the older %s: %w", was.VMM, was.Version, is.Version,
			errdefs.ErrFailedPrecondition)
	}
	if majors > 0 && majorOf(is.Version)-majorOf(was.Version) > majors {
		return fmt.Errorf("it was made by %s %s, this node has %s, which takes state of at most %d major versions before "+
			"it. To bring it here, let it wake and sleep once with a version between them: %w", was.VMM, was.Version,
			is.Version, majors, errdefs.ErrFailedPrecondition)
	}
	for _, feature := range was.Features {
		if !slices.Contains(is.Features, feature) {
			return fmt.Errorf("it needs the CPU feature %s, which this node lacks: %w", feature, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// checkFacts refuses device state that this node cannot take up, and answers what would.
func (h *Host) checkFacts(ctx context.Context, was snapshot.Facts, s *spec.Spec) (vmm.Facts, error) {
	driver, err := h.Driver(ctx, was.VMM)
	if err != nil {
		return vmm.Facts{}, err
	}
	facts, err := driver.Probe(ctx)
	if err != nil {
		return facts, err
	}
	if err := compatible(was, factsOf(facts, h.HostKernel), facts.Majors); err != nil {
		return facts, err
	}
	return facts, layout(s)
}

// Fits reports whether host could take up the device state of a VM, of which another shim's
// Offer says this Spec and these facts (JSON): FailedPrecondition names what differs. Create looks at more.
func Fits(ctx context.Context, host *Host, offered, facts []byte) error {
	var s spec.Spec
	var was snapshot.Facts
	if err := errors.Join(json.Unmarshal(offered, &s), json.Unmarshal(facts, &was)); err != nil {
		return fmt.Errorf("read what is offered: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if s.Version > spec.Version {
		return fmt.Errorf("its Spec has version %d, this build knows %d: %w", s.Version, spec.Version,
			errdefs.ErrNotImplemented)
	}
	_, err := host.checkFacts(ctx, was, &s)
	return err
}

// Classes are what a VM has to fit on host, for people: the CPUs that its VMMs give to VMs, and these VMMs with their
// versions. Two nodes with the same class and VMM take each other's VMs. A VMM that cannot run here is left out.
func Classes(ctx context.Context, host *Host, names ...string) (cpus, vmms []string) {
	for _, name := range names {
		driver, err := host.Driver(ctx, name)
		if err != nil {
			continue
		}
		facts, err := driver.Probe(ctx)
		if err != nil {
			continue
		}
		f := factsOf(facts, "")
		cpu := f.Accel + "/" + f.CPU
		if len(f.Features) > 0 {
			sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(f.Features)), " ")))
			cpu += "-" + hex.EncodeToString(sum[:classBytes])
		}
		if !slices.Contains(cpus, cpu) {
			cpus = append(cpus, cpu)
		}
		vmms = append(vmms, strings.TrimSuffix(f.VMM+"/"+f.Version+"/"+f.Machine, "/"))
	}
	return cpus, vmms
}

// classBytes of the hash of a CPU's features tell its class from others.
const classBytes = 6

// layout refuses devices that do not lie where every node puts them: device state is
// matched to devices by their slots, and a VMM tells too little, too late.
func layout(s *spec.Spec) error {
	cold, hot := splitDisks(s)
	for i, slot := range diskSlots(cold) {
		if d := cold[i]; d.Slot != slot {
			return errWrongSlot("disk", d.ID, d.Slot, slot)
		}
	}
	taken := map[int]bool{}
	for _, d := range hot {
		if taken[d.Slot] || d.Slot > spec.LastHotSlot || !d.ReadOnly {
			return fmt.Errorf("its device layout has disk %s in slot %d, where no pod of this node has it: %w", d.ID, d.Slot,
				errdefs.ErrFailedPrecondition)
		}
		taken[d.Slot] = true
	}
	for i, n := range s.NICs {
		if n.Slot != firstNICSlot+i {
			return errWrongSlot("NIC", n.ID, n.Slot, firstNICSlot+i)
		}
	}
	return nil
}

// splitDisks parts the disks that a VM boots with from those that were plugged into a pod, which may leave slots free
// between them.
func splitDisks(s *spec.Spec) (cold, hot []spec.Disk) {
	for _, d := range s.Disks {
		if s.Pod != nil && d.Slot >= spec.FirstHotSlot {
			hot = append(hot, d)
			continue
		}
		cold = append(cold, d)
	}
	return cold, hot
}

// diskSlots are where disks lie, in their order. What the guest has not as a device has
// none.
func diskSlots(disks []spec.Disk) []int {
	slots, next := make([]int, len(disks)), firstDiskSlot
	for i, d := range disks {
		if d.Device() {
			slots[i] = next
			next++
		}
	}
	return slots
}

func errWrongSlot(kind, id string, slot, want int) error {
	return fmt.Errorf("its device layout has %s %s in slot %d, this node has it in %d: %w", kind, id, slot, want,
		errdefs.ErrFailedPrecondition)
}
