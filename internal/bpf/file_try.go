package bpf

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sameFlags of two files say that ext4 writes them in the same way.
const sameFlags = 0x800 /* encrypted */ | 0x100000 /* verified */ | 0x4000 /* journalled */ | 0x80000 /* extents */ |
	0x2000000 /* DAX */ | 0x10000000 /* inline data */

const tryPages = 256

// try writes a file next to the noted one, in each way that is noted, and looks whether the kernel notes that. A kernel
// that has the events and writes in another way is found here. The notes are empty after that.
func (n *FileNotes) try(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "try")
	defer f.Close()
	if err := n.alike(f); err != nil {
		return err
	}
	r := &Noted{words: n.words, size: n.size}
	r.shift, r.blocks = notedShift(n.size)
	if err := f.Truncate(tryPages << r.shift); err != nil {
		return fmt.Errorf("set size: %w", err)
	}
	if _, err := n.ask(f); err != nil {
		return err
	}
	// Of a small disk the last block is the first one.
	last := min(tryPages, int64(r.blocks)) - 1
	page := make([]byte, 1<<leastShift)
	write := func(at int64, data []byte) func() error {
		return func() error { _, err := f.WriteAt(data, at); return err }
	}
	allocate := func(mode uint32, at int64) func() error {
		return func() error { return unix.Fallocate(fd, mode, at<<r.shift, 1<<r.shift) }
	}
	const keep = unix.FALLOC_FL_KEEP_SIZE
	for what, do := range map[string]struct {
		block int64
		do    func() error
	}{
		"a write of a page":   {last, write(last<<r.shift, page)},
		"a write of a byte":   {last / 2, write(last/2<<r.shift+1, page[:1])},
		"fallocate":           {last / 3, allocate(keep, last/3)},
		"fallocate, punching": {last, allocate(keep|unix.FALLOC_FL_PUNCH_HOLE, last)},
		"fallocate, zeroing":  {last / 2, allocate(keep|unix.FALLOC_FL_ZERO_RANGE, last/2)},
	} {
		if err := do.do(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if !n.hasOnly(r, do.block) {
			return fmt.Errorf("%s is not noted", what)
		}
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("set size: %w", err)
	}
	if n.words.get(lostAt) != lostResized {
		return errors.New("that the size is set is not noted")
	}
	n.words.set(inodeAt, 0)
	clear(n.words)
	return nil
}

// hasOnly reports whether one block is noted, and forgets it.
func (n *FileNotes) hasOnly(r *Noted, block int64) bool {
	var is, others bool
	r.Take(func(offset, end int64) {
		if offset>>r.shift == block && (end-1)>>r.shift == block {
			is = true
		} else {
			others = true
		}
	})
	clear(n.words[bitsAt/8:])
	return is && !others && n.words.lost() == nil
}

// alike refuses a noted file that is written in another way than f.
func (n *FileNotes) alike(f *os.File) error {
	var flags [2]uint32
	for i, f := range []*os.File{n.file, f} {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.FS_IOC_GETFLAGS, uintptr(unsafe.Pointer(&flags[i]))); e != 0 {
			return fmt.Errorf("ask for flags: %w", e)
		}
	}
	if flags[0]&sameFlags != flags[1]&sameFlags {
		return fmt.Errorf("it has flags %#x, a new file has %#x", flags[0]&sameFlags, flags[1]&sameFlags)
	}
	return nil
}
