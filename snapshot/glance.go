package snapshot

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/format"
)

// glanceShare is which part of all data, one in so many, a glance costs less for than a look
// where it has to make a call for each page.
const glanceShare = 16

// glance is look for RAM that is tracked: it takes as long as what was written, not as long as
// what is resident, since what the tracker does not tell of is as it was when all of it was
// looked at. What nobody tells of, as a hole that somebody has punched, shows in the number
// of pages that the file has: where that is what it would be if all that was written is there, it
// is; else these are looked for, and if the number is another one still, it answers false, and all
// has to be looked at. Of a VM that
// runs there may be more pages than are found, those that have come since the tracker told; it
// tells of them next time, so that they are not missed twice.
func (s *area) glance(runs bool, lost func(s *area, number int, pages *mask) error) (bool, error) {
	if s.Disk != "" || !s.looked {
		return false, nil
	}
	has, err := s.allocated()
	if err != nil {
		return false, err
	}
	if s.presume(has) {
		return true, s.forget(lost)
	}
	return s.inspect(runs, lost)
}

// presume takes what was written for there, if the file has as many pages as that makes.
func (s *area) presume(has int64) bool {
	for i := range s.data {
		all := s.data[i].or(&s.touched[i])
		has -= int64(all.count())
	}
	if has != 0 {
		return false
	}
	for i := range s.data {
		s.data[i] = s.data[i].or(&s.touched[i])
	}
	s.short = false
	clear(s.touched)
	return true
}

// inspect asks for each page that was written.
func (s *area) inspect(runs bool, lost func(s *area, number int, pages *mask) error) (bool, error) {
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
	has, err := s.allocated()
	if err != nil {
		return false, err
	}
	more := has - pages
	if more != 0 && (!runs || more < 0 || s.short) {
		return false, nil
	}
	s.short = more != 0
	clear(s.touched)
	return true, s.forget(lost)
}

// allocated counts the pages that the file has.
func (s *area) allocated() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File.Fd()), &st); err != nil {
		return 0, fmt.Errorf("scan %s: %w", s.Name, os.NewSyscallError("fstat", err))
	}
	return st.Blocks * 512 / format.PageSize, nil
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
