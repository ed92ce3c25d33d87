package snapshot

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// glanceShare is which part of all data, one in so many, a glance costs less for than a look:
// it makes a call for each page.
const glanceShare = 16

// glance is look for RAM that is tracked: it takes as long as what was written, not as long as
// what is resident, since what the tracker does not tell of is as it was when all of it was
// looked at. What nobody tells of, as a hole that somebody has punched, shows in the number
// of pages that the file has: then it answers false, and all has to be looked at. Of a VM that
// runs there may be more pages than are found, those that have come since the tracker told; it
// tells of them next time, so that they are not missed twice.
func (s *area) glance(runs bool, lost func(s *area, number int, pages *mask) error) (bool, error) {
	if s.Disk != "" || !s.looked {
		return false, nil
	}
	var touched, pages int64
	for i := range s.data {
		touched, pages = touched+int64(s.touched[i].count()), pages+int64(s.data[i].count())
	}
	if touched > pages/glanceShare {
		return false, nil
	}
	pages = 0
	for i := range s.data {
		if err := s.peek(i); err != nil {
			return false, fmt.Errorf("scan %s: %w", s.Name, err)
		}
		pages += int64(s.data[i].count())
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File.Fd()), &st); err != nil {
		return false, fmt.Errorf("scan %s: %w", s.Name, os.NewSyscallError("fstat", err))
	}
	more := st.Blocks*512 - pages*format.PageSize
	if more != 0 && (!runs || more < 0 || s.short) {
		return false, nil
	}
	s.short = more != 0
	clear(s.touched)
	return true, s.forget(lost)
}

// peek finds out which of a block's touched pages have data. SEEK_HOLE would walk to the end
// of what they are part of.
func (s *area) peek(number int) error {
	touched := &s.touched[number]
	s.data[number] = s.data[number].without(touched)
	base := int64(number) * blockSize
	return touched.runs(func(from, to int) error {
		for at, end := base+int64(from)*format.PageSize, base+int64(to)*format.PageSize; at < end; at += format.PageSize {
			data, err := seekData(s.File, at)
			if err != nil || data >= end {
				return err
			}
			at = data / format.PageSize * format.PageSize
			s.data[number].set(int((at - base) / format.PageSize))
		}
		return nil
	})
}
