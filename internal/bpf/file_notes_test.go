package bpf

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const diskPages = 2048

// notedDisk is a file of ext4 whose writes are noted, and what it was.
type notedDisk struct {
	t     *testing.T
	f     *os.File // the one that may write
	notes *FileNotes
	noted *Noted
	was   []byte
}

func onExt4(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || st.Type != unix.EXT4_SUPER_MAGIC || NotesFiles() != nil {
		t.Skip("needs root, Linux 6.14, and a directory for temporary files on ext4")
	}
	return dir
}

func newDisk(t *testing.T) *notedDisk {
	t.Helper()
	d := &notedDisk{t: t, was: make([]byte, diskPages<<leastShift)}
	var err error
	if d.f, err = os.Create(filepath.Join(onExt4(t), "disk")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.f.Close() })
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range d.was[:len(d.was)/2] { // the rest is a hole
		d.was[i] = byte(rng.Uint32() | 1)
	}
	if _, err := d.f.Write(d.was[:len(d.was)/2]); err != nil {
		t.Fatal(err)
	}
	if err := d.f.Truncate(int64(len(d.was))); err != nil {
		t.Fatal(err)
	}
	return d
}

// note begins the notes, of a file that one has open that may write.
func (d *notedDisk) note() *notedDisk {
	d.t.Helper()
	f, err := os.Open(d.f.Name())
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close() // the notes have their own
	if d.notes, err = NoteFile(d.t.Context(), f, 1); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = d.notes.Close() })
	if d.noted, err = OpenNoted(d.notes.Map, int64(len(d.was))); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(d.noted.Close)
	return d
}

// holds wants each page that is not what it was to be noted, and answers how many are.
func (d *notedDisk) holds(what string) (pages int) {
	d.t.Helper()
	if err := d.notes.Settle(1); err != nil || !d.noted.Settled() {
		d.t.Fatalf("%s: %v", what, err)
	}
	written := map[int64]bool{}
	d.noted.Take(func(offset, end int64) {
		for at := offset; at < end; at += 1 << leastShift {
			written[at>>leastShift] = true
		}
	})
	is, err := os.ReadFile(d.f.Name())
	if err != nil || len(is) != len(d.was) {
		d.t.Fatal(err)
	}
	for page := range int64(diskPages) {
		from, to := page<<leastShift, (page+1)<<leastShift
		if !bytes.Equal(is[from:to], d.was[from:to]) && !written[page] {
			d.t.Errorf("%s: page %d was written, and is not noted", what, page)
		}
	}
	d.was = is
	return len(written)
}

// Each way in which a VMM writes a disk is noted: each page of the file that has changed is in the notes, after each
// of some hundred writes. Pages that were written once are noted once.
func TestEachWriteIsNoted(t *testing.T) {
	d := newDisk(t).note()
	rng := rand.New(rand.NewPCG(3, 4))
	fd := int(d.f.Fd())
	ring, aio := newRing(t), newAIO(t)
	other, err := os.CreateTemp(filepath.Dir(d.f.Name()), "other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Write(bytes.Repeat([]byte("other"), 1<<18)); err != nil {
		t.Fatal(err)
	}
	const keep = unix.FALLOC_FL_KEEP_SIZE
	ways := map[string]func(at int64, data []byte) error{
		"pwrite":  func(at int64, data []byte) error { _, err := d.f.WriteAt(data, at); return err },
		"pwritev": func(at int64, b []byte) error { _, err := unix.Pwritev(fd, [][]byte{b[:1], b[1:]}, at); return err },
		"pwritev2, on disk": func(at int64, data []byte) error {
			_, err := unix.Pwritev2(fd, [][]byte{data}, at, unix.RWF_DSYNC)
			return err
		},
		"write": func(at int64, data []byte) error {
			if _, err := d.f.Seek(at, 0); err != nil {
				return err
			}
			_, err := d.f.Write(data)
			return err
		},
		"aio": func(at int64, data []byte) error { return aio.write(fd, data, at) },
		"copy_file_range": func(at int64, data []byte) error {
			from := int64(0)
			_, err := unix.CopyFileRange(int(other.Fd()), &from, fd, &at, len(data), 0)
			return err
		},
		"sendfile": func(at int64, data []byte) error {
			if _, err := d.f.Seek(at, 0); err != nil {
				return err
			}
			from := int64(0)
			_, err := unix.Sendfile(fd, int(other.Fd()), &from, len(data))
			return err
		},
		"fallocate":          func(at int64, b []byte) error { return unix.Fallocate(fd, keep, at, int64(len(b))) },
		"fallocate, to size": func(at int64, b []byte) error { return unix.Fallocate(fd, 0, at, int64(len(b))) },
		"punch": func(at int64, b []byte) error {
			return unix.Fallocate(fd, keep|unix.FALLOC_FL_PUNCH_HOLE, at, int64(len(b)))
		},
		"zero": func(at int64, b []byte) error {
			return unix.Fallocate(fd, keep|unix.FALLOC_FL_ZERO_RANGE, at, int64(len(b)))
		},
	}
	if ring != nil {
		ways["io_uring"] = func(at int64, data []byte) error { return ring.write(fd, data, at) }
	}
	for n := range 30 {
		for what, do := range ways {
			data := make([]byte, 1+rng.IntN(200_000))
			if n%3 == 0 {
				data = data[:min(len(data), 2+rng.IntN(4096))]
			}
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			if len(data) < 2 {
				data = []byte("two")
			}
			if err := do(rng.Int64N(int64(len(d.was)-len(data))), data); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			d.holds(what)
		}
	}
}

// What was written is noted once. What was allocated, zeroed or punched is noted before it changes, and so each time.
func TestNotesAreTaken(t *testing.T) {
	d := newDisk(t).note()
	if n := d.holds("nothing"); n != 0 {
		t.Errorf("%d pages of a file that was not written", n)
	}
	if _, err := d.f.WriteAt(make([]byte, 3<<leastShift), 5<<leastShift); err != nil {
		t.Fatal(err)
	}
	if n := d.holds("three pages"); n != 3 {
		t.Errorf("%d pages, not 3", n)
	}
	if n := d.holds("nothing"); n != 0 {
		t.Errorf("%d pages that were told before", n)
	}
	err := unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 7<<leastShift, 1<<leastShift)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n := d.holds("a hole"); n != 1 {
			t.Errorf("%d pages, not 1", n)
		}
	}
}

// Whatever is not understood ends the notes: all of the disk is read then.
func TestNotesEnd(t *testing.T) {
	for what, do := range map[string]func(d *notedDisk) error{
		"its size was set":     func(d *notedDisk) error { return d.f.Truncate(1 << 20) },
		"its size has changed": func(d *notedDisk) error { return d.f.Truncate(int64(len(d.was)) + 1) },
		"it has grown": func(d *notedDisk) error {
			_, err := d.f.WriteAt([]byte("more"), int64(len(d.was)))
			return err
		},
		"its blocks were moved": func(d *notedDisk) error {
			return unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, 1<<20)
		},
		"a range was too long": func(d *notedDisk) error {
			return unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, int64(len(d.was)))
		},
		"another process had it open for writing": func(d *notedDisk) error {
			f, err := os.OpenFile(d.f.Name(), os.O_RDWR|unix.O_DIRECT, 0)
			if err != nil {
				return err
			}
			return f.Close()
		},
		"2 open files may write to it, not 1": func(d *notedDisk) error {
			f, err := os.OpenFile(d.f.Name(), os.O_RDWR|unix.O_DIRECT, 0)
			d.t.Cleanup(func() { f.Close() })
			return err
		},
		"it is mapped writable": func(d *notedDisk) error {
			mem, err := unix.Mmap(int(d.f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err == nil {
				mem[0]++
				d.t.Cleanup(func() { _ = unix.Munmap(mem) })
			}
			return err
		},
		"the kernel did not run a program": func(d *notedDisk) error {
			missesOf = func(*os.File) (uint64, error) { return 1, nil }
			return nil
		},
		"the kernel runs no program for it": func(d *notedDisk) error {
			return d.notes.links[len(d.notes.links)-1].Close()
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := newDisk(t)
			if what == "a range was too long" {
				d.was = append(d.was, make([]byte, 16<<20)...)
				if err := d.f.Truncate(int64(len(d.was))); err != nil {
					t.Fatal(err)
				}
			}
			d.note()
			was := missesOf
			defer func() { missesOf = was }()
			if err := do(d); err != nil {
				t.Fatal(err)
			}
			err := d.notes.Settle(1)
			if err == nil || !strings.Contains(err.Error(), what) || d.noted.Settled() {
				t.Errorf("%v; settled: %v", err, d.noted.Settled())
			}
			missesOf = was
			if d.notes.Settle(1) == nil && d.noted.Settled() {
				t.Error("they are whole again")
			}
		})
	}
}

// The notes end with who has them.
func TestNotesAreClosed(t *testing.T) {
	d := newDisk(t).note()
	d.holds("nothing")
	if err := d.notes.Close(); err != nil {
		t.Fatal(err)
	}
	if d.noted.Settled() {
		t.Error("a reader believes notes that have ended")
	}
	if err := d.notes.Settle(1); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}
