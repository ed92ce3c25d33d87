package precopy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stamp tells a disk that was not written since: the kernel sets its times at every
// write, before the write is over.
type stamp struct {
	modified, changed unix.Timespec
	settled           bool // the last write was long enough ago to have another time than the next
}

// settleTime is several steps of the kernel's clock.
const settleTime = 100 * time.Millisecond

func stampOf(f *os.File) (stamp, error) {
	now := time.Now()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	last := time.Unix(st.Ctim.Unix())
	if m := time.Unix(st.Mtim.Unix()); m.After(last) {
		last = m
	}
	return stamp{modified: st.Mtim, changed: st.Ctim, settled: now.Sub(last) > settleTime}, nil
}

// Settled reports whether the next write to f shows in its times.
func Settled(f *os.File) (bool, error) {
	s, err := stampOf(f)
	return s.settled, err
}

// stands reports whether nothing was written between both.
func (s stamp) stands(now stamp) bool {
	return s.settled && s.modified == now.modified && s.changed == now.changed
}

// unwritten reports whether a disk is as it was when it was last looked at, and remembers how
// it is now.
func (a *Area) unwritten() (bool, error) {
	if a.Disk == "" || a.still {
		return a.still, nil
	}
	now, err := stampOf(a.File)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", a.Name, err)
	}
	// A reader waits for a write that set these times before and is still under way: XFS has
	// no other call wait.
	var one [1]byte
	if _, err := a.File.ReadAt(one[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("look at %s: %w", a.Name, err)
	}
	before := a.stamp
	a.stamp = now
	return before.stands(now), nil
}
