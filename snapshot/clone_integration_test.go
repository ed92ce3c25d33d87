//go:build integration

package snapshot

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// reflinked is a file system that clones files.
func reflinked(t *testing.T, kind string) string {
	t.Helper()
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(known), "\t"+kind+"\n") {
		if out, err := exec.Command("modprobe", kind).CombinedOutput(); err != nil {
			t.Skipf("NOT RUN: this kernel has no %s: %s", kind, out)
		}
	}
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	run("truncate", "-s", "512M", image)
	run("mkfs."+kind, "-q", image)
	run("mkdir", at)
	run("mount", "-o", "loop", image, at)
	t.Cleanup(func() { run("umount", "-l", at) })
	return at
}

func openAs(t *testing.T, path string, flag int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flag|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// With the kernel's own clones a checkpoint has the disk of the pause. The guest writes over the disk, trims it and
// lets it grow from the moment it goes on. What is not in memory yet, O_DIRECT, partial pages and holes are in it.
// No file stays, and nothing was read in the pause.
func TestReflink(t *testing.T) {
	for _, kind := range []string{"btrfs", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := reflinked(t, kind)
			for round := range uint64(4) {
				w := newWorld(t, 90+round)
				disk := openAs(t, filepath.Join(dir, "disk"), os.O_CREATE|os.O_TRUNC)
				rng := rand.New(rand.NewPCG(round, 4))
				const size = 64<<20 + 512
				if err := disk.Truncate(size); err != nil {
					t.Fatal(err)
				}
				for i := range int64(16) {
					must(t, writeAt(disk, randomBytes(rng, 100_000), i*(3<<20)+i*1000))
				}
				w.src.Spaces[1].File, w.opts.Spec.Disks[1].Size = disk, size
				w.src.Spaces[1].Clone = openAs(t, dir, unix.O_TMPFILE)
				g := newGuest(w, round)
				var then instant
				w.opts.Budget, w.opts.Next, w.opts.Repository = 50*time.Millisecond, emptyFile(t, "next"), "repo/uid1"
				w.opts.Live = pausing{g, func() { // not on the disk's disk yet
					must(t, writeAt(disk, randomBytes(rng, 3<<20), 33_000_000))
					must(t, unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3<<20, 3<<20))
					direct(t, disk, rng)
				}}
				w.opts.Captured = func() {
					then = instant{sumFile(t, g.ram), sumFile(t, disk)}
					must(t, writeAt(disk, randomBytes(rng, 40<<20), 0))
					must(t, unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 20<<20, 30<<20))
				}
				go g.run()
				receipt, err := Push(t.Context(), slow{w.st}, w.src, w.opts)
				if err != nil {
					t.Fatal(err)
				}
				w.holds(t, receipt.Digest, then)
				if len(receipt.Disks) > 0 {
					t.Errorf("read in the pause: %+v", receipt.Disks)
				}
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
				t.Errorf("left: %v, %v", files, err)
			}
		})
	}
}

// direct writes past the kernel's cache.
func direct(t *testing.T, disk *os.File, rng *rand.Rand) {
	t.Helper()
	f := openAs(t, disk.Name(), unix.O_DIRECT)
	page, err := unix.Mmap(-1, 0, 16*format.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(t, err)
	defer func() { must(t, unix.Munmap(page)) }()
	copy(page, randomBytes(rng, len(page)))
	must(t, writeAt(f, page, 50<<20))
}

// A disk on a file system without clones says so, and is read in the pause.
func TestNoReflink(t *testing.T) {
	w := newWorld(t, 95)
	dir, err := os.MkdirTemp("/dev/shm", "disk")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	w.src.Spaces[1].Clone = openAs(t, dir, unix.O_TMPFILE)
	disk := openAs(t, filepath.Join(dir, "disk"), os.O_CREATE)
	must(t, writeAt(disk, randomBytes(rand.New(rand.NewPCG(1, 1)), 1<<20+512), 0))
	w.src.Spaces[1].File = disk
	receipt, then, _ := w.goesOn(t, 7, func(*guest) Tracker { return nil })
	w.holds(t, receipt.Digest, then)
	if got := fmt.Sprint(receipt.Disks); got != "[{rw 1052672 its file system has no reflink false}]" {
		t.Errorf("read in the pause: %s", got)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
