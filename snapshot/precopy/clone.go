package precopy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// A disk that is written to is read after the pause where its file system shares extents
// between files: in the pause it is cloned, which copies nothing, and what the VM writes
// afterwards goes elsewhere. On any other file system all of it is read in the pause, and what
// was written since the pass before is copied.

// DiskInPause is a disk that was read while the VM stood still.
type DiskInPause struct {
	Disk string `json:"disk"`
	Read uint64 `json:"readBytes"`
	Why  string `json:"why"` // it was not cloned
	// Noted says that only what was written during the snapshot was read.
	Noted bool `json:"noted,omitempty"`
}

// CloneFile is FICLONE; tests have it fail.
var CloneFile = func(to, from int) error { return unix.IoctlFileClone(to, from) }

// preclone finds out whether a disk can be cloned, while the VM runs. It has the kernel write
// back what it holds of the disk, which the clone in the pause would wait for.
func (a *Area) preclone() {
	if a.Clone == nil {
		a.whole = "there is no place for a clone"
		return
	}
	err := CloneFile(int(a.Clone.Fd()), int(a.File.Fd()))
	if err == nil {
		err = a.Clone.Truncate(0)
	}
	if a.clones = err == nil; !a.clones {
		a.whole = whyNoClone(err)
	}
}

func whyNoClone(err error) string {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
		return "its file system has no reflink"
	}
	return fmt.Sprintf("it cannot be cloned: %v", err)
}

// clone takes what a disk is at this instant, if anything of it has to be looked at. From here
// on the area is the clone. Failed: it has to be read now.
func (a *Area) clone() (failed bool, err error) {
	a.clones = false
	unwritten, err := a.unwritten()
	if err != nil || unwritten && !a.lefts() {
		return false, err
	}
	a.stamp, a.noted = stamp{}, false // nothing was looked at
	if err := CloneFile(int(a.Clone.Fd()), int(a.File.Fd())); err != nil {
		a.whole = whyNoClone(err)
		return true, nil
	}
	a.File, a.cloned = a.Clone, true
	return false, nil
}

// lefts reports whether pages were left for the pause.
func (a *Area) lefts() bool {
	for _, b := range a.blocks {
		if b != nil && !b.left.Empty() {
			return true
		}
	}
	return false
}

// prepareDisks has the kernel write back what it holds of disks, since the VMM waits for that
// when it is paused. It also finds out which disks can be cloned.
func (p *Precopy) prepareDisks(ctx context.Context) error {
	for _, a := range p.Areas {
		if a.Disk == "" {
			continue
		}
		if p.o.Clones {
			a.preclone()
		}
		if a.clones {
			continue // it is written back
		}
		if err := unix.Fdatasync(int(a.File.Fd())); err != nil && err != unix.EINVAL && err != unix.EROFS {
			return fmt.Errorf("sync %s: %w", a.Name, err)
		}
	}
	return ctx.Err()
}

// cloneDisks is the end of the pause. A disk that cannot be cloned now, though it could before, is
// read in the pause.
func (p *Precopy) cloneDisks(ctx context.Context) (Count, error) {
	var failed bool
	for _, a := range p.Areas {
		if !a.clones {
			continue
		}
		fails, err := a.clone()
		if err != nil {
			return Count{}, err
		}
		failed = failed || fails
	}
	if !failed {
		return Count{}, nil
	}
	return p.Pass(ctx, Scope{Last: true, only: func(a *Area) bool { return a.Disk != "" && !a.cloned }})
}

// readClones reads the clones, when the VM may go on. Its RAM is compared by calls from here
// on: they fill no hole that is new.
func (p *Precopy) readClones(ctx context.Context) error {
	clones := func(a *Area) bool { return a.cloned }
	if !slices.ContainsFunc(p.Areas, clones) {
		return nil
	}
	p.RAM().close()
	if _, err := p.Pass(ctx, Scope{Last: true, after: true, only: clones}); err != nil {
		return err
	}
	for _, a := range p.Areas {
		a.still = a.cloned
	}
	return nil
}

// inPause are the disks that were read in the pause.
func (p *Precopy) inPause() (list []DiskInPause) {
	for _, a := range p.Areas {
		if a.Disk != "" && a.read > 0 {
			list = append(list, DiskInPause{Disk: a.Disk, Read: a.read, Why: a.whole, Noted: a.noted})
		}
	}
	return list
}
