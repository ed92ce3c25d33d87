// Package track tells which pages of the RAM of a running VM were written, from outside of its
// VMM. It does so by asynchronous write protection (uffd), by soft-dirty bits, or not at all. In
// the last case its caller compares contents. None sees pages that a device writes past the page
// tables of the VMM (O_DIRECT), nor holes: docs/concepts/tracking.md.
package track

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
)

// Way of tracking.
type Way string

// Ways, best first.
const (
	UFFD      Way = "uffd"
	SoftDirty Way = "soft-dirty"
	Content   Way = "content"
)

// Ways are those that can be chosen.
var Ways = []Way{UFFD, SoftDirty, Content}

// Tracker divides time into intervals.
type Tracker interface {
	// Next ends an interval and begins another. It calls written for each range of the RAM
	// file that was written in the interval that ends, and answers whether those are all:
	// if not, every page may have been. The first call only begins. Last is set where the VM
	// stands still: nothing is armed again.
	Next(last bool, written func(offset, end int64)) (known bool, err error)
	// Between reports whether Next knows before the last one: otherwise everything is to be
	// compared in each interval.
	Between() bool
	// Stop has the VM run on as if it had never been tracked.
	Stop() error
}

// Region is a part of the RAM file in the address space of its VMM.
type Region struct {
	Address uint64 `json:"address"`
	Offset  int64  `json:"offset"` // in the file
	Length  int64  `json:"length"`
}

// Files are what a tracker works with. They were opened by who may look into the VMM, and
// serve in another process too.
type Files struct {
	Pagemap *os.File // of the VMM, for all but Content
	Fault   *os.File // its userfaultfd, for UFFD
	Clear   *os.File // its clear_refs, for SoftDirty
	Vmstat  *os.File // the host's /proc/vmstat, for SoftDirty; without it no interval is known
	RAM     *os.File // what it has mapped, for UFFD; open and close it by yourself
}

// New makes a tracker, which tracks nothing before its first Next.
func New(way Way, regions []Region, f Files) (Tracker, error) {
	switch {
	case way == Content:
		return content{}, nil
	case way == UFFD && f.Fault != nil && f.Pagemap != nil && f.RAM != nil:
		return newUFFD(regions, f)
	case way == SoftDirty && f.Clear != nil && f.Pagemap != nil:
		return &softDirty{regions: regions, files: f}, nil
	}
	return nil, fmt.Errorf("track by %q: files are missing, or the way is unknown: %w", way, errdefs.ErrInvalidArgument)
}

// Continue is New for RAM that Arm has armed, and that has not been tracked since: the first
// Next tells what was written from then on.
func Continue(way Way, regions []Region, f Files) (Tracker, error) {
	t, err := New(way, regions, f)
	if u, ok := t.(*uffd); ok {
		u.armed = true
	}
	return t, err
}

// content knows nothing.
type content struct{}

func (content) Next(bool, func(offset, end int64)) (bool, error) { return false, nil }
func (content) Between() bool                                    { return false }
func (content) Stop() error                                      { return nil }
