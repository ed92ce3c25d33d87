package shim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/events"
	"godwit.dev/godwit/shim/statcache"
	"godwit.dev/godwit/vmm"
)

// vmmFacts are of the VMM that the VM has. The zero value knows nothing.
type vmmFacts struct {
	mu       sync.Mutex
	probed   vmm.Facts // as its driver says
	cloned   bool      // started as a copy of a template
	oomKills uint64    // in the host's cgroup before it was started
	ended    string    // why it ended by itself
}

func (f *vmmFacts) note(probed vmm.Facts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probed = probed
}

// facts are those of the VMM's driver.
func (f *vmmFacts) facts() vmm.Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probed
}

// isCopy notes that the VM was started as a copy of a template.
func (f *vmmFacts) isCopy() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cloned = true
}

func (f *vmmFacts) copied() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cloned
}

// starts notes how often the host has killed a process of the cgroup for its memory so far.
func (f *vmmFacts) starts(oomKills uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.oomKills = oomKills
}

// killedForMemory notes why the VMM has ended if the host has killed a process of the cgroup since its
// start, and reports that.
func (f *vmmFacts) killedForMemory(oomKills uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if oomKills <= f.oomKills {
		return false
	}
	f.ended = events.OutOfMemory
	return true
}

// reason is why the VMM has ended by itself; empty: it has not, or that is not known.
func (f *vmmFacts) reason() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

// baseCmdline is what every guest of ours is booted with. The kernel's own check of the timer counts interrupts in a
// time that a busy host does not keep, and panics. Under KVM it leaves the check out by itself. Its tests of its own
// ciphers cost a boot without KVM a third of a second.
const baseCmdline = "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests"

// timerArguments is what the kernel is told in addition where several emulated CPUs share busy ones: QEMU then loses an
// alarm now and again, and a CPU that waits for its one alarm sleeps for ever. One that is woken by every tick misses
// one.
func timerArguments(accel string, vcpus int) string {
	if accel == "tcg" && vcpus > 1 {
		return " nohz=off highres=off"
	}
	return ""
}

// GuestKernel describes the kernel and initramfs that cfg names.
func GuestKernel(cfg *config.Config) (spec.Kernel, error) {
	m := statcache.Cache{Path: cfg.FactsFile()}
	digest, err := m.Of("guest digest", []string{cfg.Guest.Kernel, cfg.Guest.Initrd}, func() (string, error) {
		return guestDigest(cfg)
	})
	if err != nil {
		return spec.Kernel{}, err
	}
	return spec.Kernel{Digest: digest, Cmdline: strings.TrimSpace(baseCmdline + " " + cfg.Guest.Cmdline)}, nil
}

func guestDigest(cfg *config.Config) (string, error) {
	sum := sha256.New()
	for _, f := range []struct{ key, path string }{{"guest.kernel", cfg.Guest.Kernel},
		{"guest.initrd", cfg.Guest.Initrd}} {
		if err := add(sum, f.path); err != nil {
			return "", fmt.Errorf("%s: %v; install godwit's guest, or set the key: %w", f.key, err,
				errdefs.ErrFailedPrecondition)
		}
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

func add(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// HostKernel is the release of the kernel that runs here.
func HostKernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// cpuFeatures lists what the host's CPU can do.
func cpuFeatures() []string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			return strings.Fields(value)
		}
	}
	return nil
}

// majorOf is the first number of a version such as 53.0; 0: it has none.
func majorOf(version string) int {
	n, err := numberAt(strings.Split(version, "."), 0)
	if err != nil {
		return 0
	}
	return n
}

// numberAt is a number of a version that was split; 0: it has not so many.
func numberAt(version []string, i int) (int, error) {
	if i >= len(version) {
		return 0, nil
	}
	return strconv.Atoi(version[i])
}

// olderVersion compares versions such as 7.2.9, number by number.
func olderVersion(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		m, err1 := numberAt(x, i)
		n, err2 := numberAt(y, i)
		if err1 != nil || err2 != nil {
			return false
		}
		if m != n {
			return m < n
		}
	}
	return false
}
