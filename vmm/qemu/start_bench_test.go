//go:build integration

package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// BenchmarkStart has VMMs start that are confined and VMMs that are not, in turns: what it costs
// a start to be confined is the ratio of the lower quartiles, which other load of the host moves least.
func BenchmarkStart(b *testing.B) {
	root := filepath.Join("..", "..", "bin", "guest")
	samples := map[bool][]float64{}
	for b.Loop() {
		for _, bare := range []bool{false, true} {
			samples[bare] = append(samples[bare], startOnce(b, bare, filepath.Join(root, "vmlinuz"),
				filepath.Join(root, "initramfs")))
		}
	}
	quartile := func(of []float64) float64 { slices.Sort(of); return of[len(of)/4] }
	confined, bare := quartile(samples[false]), quartile(samples[true])
	b.ReportMetric(confined, "ms-confined")
	b.ReportMetric(bare, "ms-bare")
	b.ReportMetric(confined/bare, "ratio")
}

// startOnce answers the milliseconds from the order to a VM that waits for its first instruction.
func startOnce(b *testing.B, bare bool, kernel, initrd string) float64 {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "start")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	ram := os.NewFile(uintptr(fd), "ram")
	defer ram.Close()
	if err := errors.Join(ram.Truncate(256<<20), ram.Chown(vmmtest.FirstUser, -1)); err != nil {
		b.Fatal(err)
	}
	driver, err := New(Driver{Accel: "tcg", bare: bare})
	if err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	m, err := driver.Start(b.Context(), vmm.Config{
		Name: "start", Dir: dir, Memory: 256 << 20, VCPUs: 1, RAM: ram, Agent: filepath.Join(dir, "agent.sock"),
		Kernel: kernel, Initrd: initrd, Track: vmm.TrackWrites,
	})
	took := time.Since(begun)
	if err == nil {
		err = m.Kill(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	return float64(took.Microseconds()) / 1000
}
