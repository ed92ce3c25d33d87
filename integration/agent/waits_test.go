//go:build integration

package agent

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor"
	"godwit.dev/godwit/vmm/vmmtest"
)

// lateRAM is vmmtest.RAM as the shim and its workers have it.
type lateRAM struct {
	tracking.Lazy
	t *testing.T
}

func (l lateRAM) Bring(p vmm.Process, ram *os.File) (put func(int64, []byte) error,
	serve func(context.Context, func(int64)) error, err error) {
	fault, regions, err := l.Open(p, ram)
	if err != nil {
		return nil, nil, err
	}
	l.t.Cleanup(func() { fault.Close() })
	m, err := track.NewMissing(regions, fault)
	if err != nil {
		return nil, nil, err
	}
	return m.Put, m.Serve, nil
}

func (l lateRAM) Whole(p vmm.Process, ram *os.File) (map[int64]bool, error) {
	if err := l.Lazy.Whole(p, ram); err != nil {
		return nil, err
	}
	return readNotes(p, ram)
}

// armedRAM is RAM that was there before the wake.
type armedRAM struct{ lateRAM }

func (armedRAM) Expect(p vmm.Process, ram *os.File) error { return track.Arm(p.PID, p.Userfault, ram) }

func (armedRAM) Whole(p vmm.Process, ram *os.File) (map[int64]bool, error) { return readNotes(p, ram) }

func readNotes(p vmm.Process, ram *os.File) (map[int64]bool, error) {
	f, regions, err := track.Find(p.PID, p.Userfault, ram)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.RAM = ram
	t, err := track.Continue(track.UFFD, regions, f)
	if err != nil {
		return nil, err
	}
	written := map[int64]bool{}
	known, err := t.Next(false, func(offset, end int64) {
		for ; offset < end; offset += pageSize {
			written[offset] = true
		}
	})
	if err == nil && !known {
		err = errors.New("the notes are lost")
	}
	return written, err
}

// suiteEnv is where the suite's clauses run that need more than a VMM.
func suiteEnv(t *testing.T) vmmtest.Env {
	t.Helper()
	driver, slot, _ := newDriver(t)
	dir, err := os.MkdirTemp("/dev/shm", "waits")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	guest, initrd := guestDir(t), filepath.Join(dir, "initrd")
	modules := cmp.Or(os.Getenv("GODWIT_GUEST_MODULES"), filepath.Join(guest, "modules"))
	if err := vmmtest.BuildInitrd(initrd, "/bin/busybox", modules); err != nil {
		t.Fatal(err)
	}
	env := vmmtest.Env{
		Driver: driver, Kernel: cmp.Or(os.Getenv("GODWIT_GUEST_KERNEL"), filepath.Join(guest, "vmlinuz")), Initrd: initrd,
		Memory: 256 << 20, VCPUs: 1, User: vmmtest.FirstUser, DiskSlot: slot, Dir: dir, NetNS: vmmtest.OpenNetNS,
		Still: 500 * time.Millisecond, Limit: 2 * time.Minute, Filtered: vmmtest.AllThreads,
	}.Here()
	if harness.VMM() == cloudhypervisor.Name {
		env.Filtered = vmmtest.ButTheFirst
	}
	return env
}

// TestWaits: a VM runs while its RAM comes, on either VMM. Who brings it may be another one in the midst of it.
// Each page that the VM writes is noted from its first instruction on.
func TestWaits(t *testing.T) {
	env := suiteEnv(t)
	if err := vmmtest.Waits(t.Context(), env, lateRAM{t: t}); err != nil {
		t.Fatal(err)
	}
	if !harness.KVM() { // its VMM maps RAM at its start, and TestTracking has the notes
		return
	}
	if err := vmmtest.Notes(t.Context(), env, armedRAM{}); err != nil {
		t.Fatal(err)
	}
}
