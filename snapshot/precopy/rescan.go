package precopy

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// rescanShare is a part of all data, one in so many. A rescan makes a call for each page. Up to
// this part it costs less than a scan.
const rescanShare = 16

// rescan is scan for RAM that is tracked. It takes as long as what was written, not as long as
// what is resident: what the tracker does not tell of is as it was when all of it was looked at.
//
// A change that the tracker does not tell of, such as a punched hole, shows in the number of pages
// that the file has. Where that number is what it would be if all written pages are there, they are
// there. Else they are looked for. If the number is another one still, rescan answers false, and
// all has to be scanned.
//
// A VM that runs may have more pages than are found: those that were made since the tracker told.
// The tracker tells of them next time, so that they are not missed twice.
func (a *Area) rescan(runs bool, lost gone) (bool, error) {
	if a.Disk != "" || !a.looked {
		return false, nil
	}
	has, err := a.allocated()
	if err != nil {
		return false, err
	}
	if a.presume(has) {
		return true, a.forgetHoles(lost)
	}
	return a.inspect(runs, lost)
}

// presume takes what was written for there, if the file has as many pages as that makes.
func (a *Area) presume(has int64) bool {
	for i := range a.data {
		all := a.data[i].or(&a.touched[i])
		has -= int64(all.Count())
	}
	if has != 0 {
		return false
	}
	for i := range a.data {
		a.data[i] = a.data[i].or(&a.touched[i])
	}
	a.short = false
	clear(a.touched)
	return true
}

// inspect asks for each page that was written.
func (a *Area) inspect(runs bool, lost func(a *Area, number int, pages *Mask) error) (bool, error) {
	var touched, pages int64
	for i := range a.data {
		touched, pages = touched+int64(a.touched[i].Count()), pages+int64(a.data[i].Count())
	}
	if touched > pages/rescanShare {
		return false, nil
	}
	pages = 0
	for i := range a.data {
		if err := a.peek(i); err != nil {
			return false, fmt.Errorf("scan %s: %w", a.Name, err)
		}
		pages += int64(a.data[i].Count())
	}
	has, err := a.allocated()
	if err != nil {
		return false, err
	}
	more := has - pages
	if more != 0 && (!runs || more < 0 || a.short) {
		return false, nil
	}
	a.short = more != 0
	clear(a.touched)
	return true, a.forgetHoles(lost)
}

// allocated counts the pages that the file has.
func (a *Area) allocated() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(a.File.Fd()), &st); err != nil {
		return 0, fmt.Errorf("scan %s: %w", a.Name, os.NewSyscallError("fstat", err))
	}
	return st.Blocks * 512 / pageSize, nil
}

// peek finds out which of a block's touched pages have data. SEEK_HOLE would walk to the end
// of what they are part of.
func (a *Area) peek(number int) error {
	touched := &a.touched[number]
	a.data[number] = a.data[number].without(touched)
	base := int64(number) * blockSize
	return touched.Runs(func(from, to int) error {
		for at, end := base+int64(from)*pageSize, base+int64(to)*pageSize; at < end; at += pageSize {
			data, err := SeekData(a.File, at)
			if err != nil || data >= end {
				return err
			}
			at = data / pageSize * pageSize
			a.data[number].Set(int((at - base) / pageSize))
		}
		return nil
	})
}
