package snapshot

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// A disk that is written to is read behind the pause where its file system shares extents
// between files: in the pause it is cloned, which copies nothing, and what the VM writes
// afterwards goes elsewhere. On any other file system all of it is read in the pause, and what
// was written since the pass before is copied.

// DiskInPause is a disk that was read while the VM stood still.
type DiskInPause struct {
	Disk string `json:"disk"`
	Read uint64 `json:"readBytes"`
	Why  string `json:"why"` // it was not cloned
}

// cloneFile is FICLONE; tests have it fail.
var cloneFile = func(to, from int) error { return unix.IoctlFileClone(to, from) }

// preclone finds out whether a disk can be cloned, while the VM runs. It has the kernel write
// back what it holds of the disk, which the clone in the pause would wait for.
func (s *area) preclone() {
	if s.Clone == nil {
		s.whole = "there is no place for a clone"
		return
	}
	err := cloneFile(int(s.Clone.Fd()), int(s.File.Fd()))
	if err == nil {
		err = s.Clone.Truncate(0)
	}
	if s.clones = err == nil; !s.clones {
		s.whole = whyNoClone(err)
	}
}

func whyNoClone(err error) string {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		return "its file system has no reflink"
	}
	return fmt.Sprintf("it cannot be cloned: %v", err)
}

// clone takes what a disk is at this instant, if anything of it has to be looked at; from here
// on the area is the clone. Failed: it has to be read now.
func (s *area) clone() (failed bool, err error) {
	s.clones = false
	quiet, err := s.quiet()
	if err != nil || quiet && !s.lefts() {
		return false, err
	}
	s.stamp = stamp{} // nothing was looked at
	if err := cloneFile(int(s.Clone.Fd()), int(s.File.Fd())); err != nil {
		s.whole = whyNoClone(err)
		return true, nil
	}
	s.File, s.cloned = s.Clone, true
	return false, nil
}

// lefts reports whether pages were left for the pause.
func (s *area) lefts() bool {
	for _, b := range s.blocks {
		if b != nil && !b.left.empty() {
			return true
		}
	}
	return false
}

// prepareDisks has the kernel write back what it holds of disks, since the VMM waits for that when
// it is paused, and finds out which can be cloned.
func (p *passes) prepareDisks() error {
	for _, s := range p.spaces {
		if s.Disk == "" {
			continue
		}
		if p.clones {
			s.preclone()
		}
		if s.clones {
			continue // it is written back
		}
		if err := unix.Fdatasync(int(s.File.Fd())); err != nil && err != unix.EINVAL && err != unix.EROFS {
			return fmt.Errorf("sync %s: %w", s.Name, err)
		}
	}
	return p.ctx.Err()
}

// cloneDisks is the end of the pause. A disk that cannot be cloned now, though it could before, is
// read in the pause.
func (p *passes) cloneDisks() (passed, error) {
	var failed bool
	for _, s := range p.spaces {
		if !s.clones {
			continue
		}
		fails, err := s.clone()
		if err != nil {
			return passed{}, err
		}
		failed = failed || fails
	}
	if !failed {
		return passed{}, nil
	}
	return p.pass(pass{last: true, only: func(s *area) bool { return s.Disk != "" && !s.cloned }})
}

// lookBehind looks at the clones, when the VM may go on. Its RAM is compared by calls from here
// on: they fill no hole that is new.
func (p *passes) lookBehind() error {
	clones := func(s *area) bool { return s.cloned }
	if !slices.ContainsFunc(p.spaces, clones) {
		return nil
	}
	p.ram().close()
	if _, err := p.pass(pass{last: true, behind: true, only: clones}); err != nil {
		return err
	}
	for _, s := range p.spaces {
		s.still = s.cloned
	}
	return nil
}

// inPause are the disks that were read in the pause.
func (p *passes) inPause() (list []DiskInPause) {
	for _, s := range p.spaces {
		if s.Disk != "" && s.read > 0 {
			list = append(list, DiskInPause{Disk: s.Disk, Read: s.read, Why: s.whole})
		}
	}
	return list
}
