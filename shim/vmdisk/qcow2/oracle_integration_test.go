//go:build integration

package qcow2

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// oracleDisk has what an image may treat in its own way: text that packs well, noise that
// does not, runs of zeros of many lengths, and an end within a cluster and a sector.
func oracleDisk(size int) []byte {
	disk := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	r := rand.New(source)
	for at := 0; at < size; {
		n := min(size-at, 1+r.IntN(1<<(6+r.IntN(13))))
		part := disk[at : at+n]
		switch r.IntN(3) {
		case 0:
			source.Read(part)
		case 1:
			for i := range part {
				part[i] = byte('a' + i/7%5)
			}
		}
		at += n
	}
	return disk
}

func qemu(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// TestAgainstQemuImg compares the reader with qemu-img, byte for byte: what it finds in
// images that qemu-img made and qemu-io wrote to is what "qemu-img convert" finds.
func TestAgainstQemuImg(t *testing.T) {
	const size = 5<<20 + 3*512
	raw := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(raw, oracleDisk(size), 0o600); err != nil {
		t.Fatal(err)
	}
	// What is written to an image that has content: cluster after cluster gets zeros that
	// a flag stands for, is given up, or is written anew, some of them in part.
	writes := []string{"-c", "write -z 64k 300k", "-c", "write -z -u 1M 256k", "-c", "discard 2M 192k", "-c",
		"write -P 0x5a 3M 70k",
		"-c", "write -P 0xa5 4000k 512", "-c", fmt.Sprintf("write -z %d 512", size-512)}
	for _, options := range []string{
		"compat=0.10", "compat=1.1", "compat=0.10,cluster_size=512", "compat=1.1,cluster_size=512",
		"compat=1.1,cluster_size=4k",
		"compat=0.10,cluster_size=2M", "compat=1.1,cluster_size=2M", "compat=1.1,lazy_refcounts=on,refcount_bits=1",
		"compat=1.1,preallocation=metadata",
		"compat=1.1,compression_type=zstd", "compat=1.1,compression_type=zstd,cluster_size=512",
		"compat=1.1,compression_type=zstd,cluster_size=2M",
	} {
		for _, packed := range []bool{false, true} {
			if packed && strings.Contains(options, "preallocation") {
				continue // qemu-img refuses it
			}
			t.Run(fmt.Sprintf("%s,compressed=%t", options, packed), func(t *testing.T) {
				image := filepath.Join(t.TempDir(), "image")
				args := []string{"convert", "-f", "raw", "-O", "qcow2", "-o", options}
				if packed {
					args = append(args, "-c")
				}
				qemu(t, "qemu-img", append(args, raw, image)...)
				same(t, image)
				qemu(t, "qemu-io", append(writes, "-f", "qcow2", image)...)
				same(t, image)
			})
		}
	}
	t.Run("empty", func(t *testing.T) {
		image := filepath.Join(t.TempDir(), "image")
		qemu(t, "qemu-img", "create", "-f", "qcow2", image, "70G")
		f, err := os.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		m, err := Open(f, info.Size(), 1<<40)
		if err != nil || m.Size != 70<<30 {
			t.Fatalf("%+v, %v", m, err)
		}
		if n, err := m.Allocated(t.Context()); n != 0 || err != nil {
			t.Errorf("%d bytes are allocated, %v", n, err)
		}
	})
}

func same(t *testing.T, image string) {
	t.Helper()
	want := filepath.Join(t.TempDir(), "want")
	qemu(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, want)
	disk, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	m, err := open(data)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(disk) {
		t.Fatalf("a disk of %d bytes, want %d", len(got), len(disk))
	}
	for at := range got {
		if got[at] != disk[at] {
			t.Fatalf("byte %d is %#x, want %#x", at, got[at], disk[at])
		}
	}
}
