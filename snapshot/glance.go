package snapshot

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// glance is look for RAM in a pause, which it makes as long as what was written, not as long
// as what is resident: what the tracker does not tell of is as it was when all of it was
// looked at. What nobody tells of, as a hole that somebody has punched, shows in the number
// of pages that the file has: then it answers false, and all has to be looked at.
func (s *area) glance(lost func(s *area, number int, pages *mask) error) (bool, error) {
	if s.mem == nil || !s.looked {
		return false, nil
	}
	for i, touched := range s.touched {
		if !touched {
			continue
		}
		if err := s.peek(i); err != nil {
			return false, fmt.Errorf("scan %s: %w", s.Name, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File.Fd()), &st); err != nil {
		return false, fmt.Errorf("scan %s: %w", s.Name, os.NewSyscallError("fstat", err))
	}
	var pages int64
	for i := range s.data {
		pages += int64(s.data[i].count())
	}
	if pages*format.PageSize != st.Blocks*512 {
		return false, nil
	}
	return true, s.forget(lost)
}

// peek finds out which pages of a block have data. SEEK_HOLE would walk to the end of what
// the block is part of.
func (s *area) peek(number int) error {
	base := int64(number) * blockSize
	mem := s.mem[base:min(s.size, base+blockSize)]
	var in [blockPages]byte
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		return os.NewSyscallError("mincore", errno)
	}
	count := (len(mem) + format.PageSize - 1) / format.PageSize
	data, next := mask{}, int64(-1)
	for i := range count {
		at := base + int64(i)*format.PageSize
		if in[i]&1 != 0 {
			data.set(i)
			continue
		}
		if next < at { // it is a hole, or not in memory
			var err error
			if next, err = seekData(s.File, at); err != nil {
				return err
			}
		}
		if next == at {
			data.set(i)
		}
	}
	s.data[number] = data
	return nil
}
