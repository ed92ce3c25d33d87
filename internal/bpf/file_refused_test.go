package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Open files are counted once for all of their descriptors. One that is read only does not count, and one past the
// cache is an error.
func TestWriters(t *testing.T) {
	d := newDisk(t)
	count := func(want int) {
		t.Helper()
		if n, err := Writers(os.Getpid(), d.f); n != want || err != nil {
			t.Errorf("%d, %v; want %d", n, err, want)
		}
	}
	count(1)
	var all []*os.File
	open := func(flag int) {
		t.Helper()
		f, err := os.OpenFile(d.f.Name(), flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		all = append(all, f)
	}
	open(os.O_RDONLY | unix.O_DIRECT)
	count(1)
	fd, err := unix.Dup(int(d.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	count(1)
	open(os.O_WRONLY)
	count(2)
	open(os.O_RDWR | unix.O_DIRECT)
	if _, err := Writers(os.Getpid(), d.f); !errors.Is(err, errDirect) {
		t.Error(err)
	}
	if _, err := Writers(1<<22+1, d.f); err == nil {
		t.Error("a process that is not has none")
	}
}

// A file without notes is refused: on another file system, mapped, open elsewhere, or with other flags.
func TestNotNoted(t *testing.T) {
	for what, make := range map[string]func(d *notedDisk) *os.File{
		"its file system is not ext4": func(d *notedDisk) *os.File {
			fd, err := unix.MemfdCreate("disk", unix.MFD_CLOEXEC)
			if err == nil {
				err = unix.Ftruncate(fd, 1<<20)
			}
			if err != nil {
				t.Fatal(err)
			}
			return os.NewFile(uintptr(fd), "/dev/shm/disk")
		},
		"2 open files may write to it, not 1": func(d *notedDisk) *os.File {
			f, err := os.OpenFile(d.f.Name(), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		"it is mapped writable": func(d *notedDisk) *os.File {
			mem, err := unix.Mmap(int(d.f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			d.t.Cleanup(func() { _ = unix.Munmap(mem) })
			return d.f
		},
		"is not noted": func(d *notedDisk) *os.File {
			d.t.Cleanup(func(was []hook) func() { return func() { fileHooks = was } }(fileHooks))
			fileHooks = fileHooks[1:] // a kernel that writes without this event
			return d.f
		},
		"event ext4_none": func(d *notedDisk) *os.File {
			d.t.Cleanup(func(was []hook) func() { return func() { fileHooks = was } }(fileHooks))
			fileHooks = append(fileHooks[:len(fileHooks):len(fileHooks)], hook{"ext4_none", (*fileProgram).written})
			return d.f
		},
		"it has flags": func(d *notedDisk) *os.File {
			f, err := os.Create(d.f.Name() + "2")
			if err == nil {
				err = f.Truncate(1 << 20)
			}
			if err == nil {
				err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0) // it has no extents
			}
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDisk(t)
			d.t = t
			f := make(d)
			if f != d.f {
				defer f.Close()
			}
			n, err := NoteFile(t.Context(), f, 1)
			if err == nil {
				n.Close()
			}
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Error(err)
			}
		})
	}
}

// A large disk has larger blocks, and its last page has one too.
func TestNotedShift(t *testing.T) {
	for size, want := range map[int64]string{1: "12 1", 4096: "12 1", 4097: "12 2", 32 << 30: "12 8388608",
		32<<30 + 1: "13 4194305", 1 << 40: "17 8388608"} {
		shift, blocks := notedShift(size)
		if got := fmt.Sprint(shift, " ", blocks); got != want {
			t.Errorf("%d: %s, not %s", size, got, want)
		}
	}
}

// What a write costs, with and without notes.
func BenchmarkNotedWrite(b *testing.B) {
	for _, noted := range []bool{false, true} {
		b.Run(fmt.Sprint("noted ", noted), func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "disk"))
			if err == nil {
				err = f.Truncate(64 << 20)
			}
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			if noted {
				n, err := NoteFile(b.Context(), f, 1)
				if err != nil {
					b.Skip(err)
				}
				defer n.Close()
			}
			page := make([]byte, 4096)
			for i := 0; b.Loop(); i++ {
				if _, err := f.WriteAt(page, int64(i%16384)<<12); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A kernel before Linux 6.14 notes nothing, and neither does one that does not say what it is.
func TestNotesOfReleases(t *testing.T) {
	for release, noted := range map[string]bool{"6.14.0": true, "6.18.44-fc": true, "7.0-rc1": true, "6.13.9": false,
		"6.12.48+deb13-amd64": false, "5.15.0-91-generic": false, "": false, "new": false} {
		if err := notesOf(release); (err == nil) != noted {
			t.Errorf("%q: %v, want %v", release, err, noted)
		}
	}
}

// The longest range that is noted has as many words as the programs look at.
func TestLongestRange(t *testing.T) {
	const longest = mostWords * 64 << leastShift
	for size, noted := range map[int64]bool{longest: true, longest + 1<<leastShift: false} {
		d := newDisk(t)
		d.was = append(d.was, make([]byte, 2*longest)...)
		if err := d.f.Truncate(int64(len(d.was))); err != nil {
			t.Fatal(err)
		}
		d.note()
		if err := unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, size); err != nil {
			t.Fatal(err)
		}
		if err := d.notes.Settle(1); (err == nil) != noted {
			t.Errorf("a range of %d bytes: %v", size, err)
		}
	}
}
