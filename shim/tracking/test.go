package tracking

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/track"
)

// Test proves that a way works on this kernel. What the child writes is told, what it reads or
// leaves alone is not. That holds also in pages that did not exist or were taken away meanwhile.
func (p Prober) Test(ctx context.Context, way track.Way) (err error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err := startChild(ctx, p.Command, way == track.UFFD, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	for page := range 32 {
		if _, err := c.order(ctx, orderWrite, page); err != nil { // and it has mapped the file
			return fmt.Errorf("ask child: %w", err)
		}
	}
	files, err := track.Open(way, c.proc.PID, c.proc.Userfault)
	if err != nil {
		return err
	}
	defer files.Close()
	regions, err := track.Regions(c.proc.PID, c.ram)
	if err != nil {
		return err
	}
	files.RAM = c.ram
	t, err := track.New(way, regions, files)
	if err != nil {
		return err
	}
	s := &selfTest{ctx: ctx, child: c, tracker: t}
	err = errors.Join(s.run(way == track.SoftDirty), t.Stop(), s.testAfter())
	if err != nil || way != track.UFFD {
		return err
	}
	return s.testArmed(regions, files)
}

type selfTest struct {
	ctx     context.Context
	child   *child
	tracker track.Tracker
}

// round is what the child does in an interval.
type round struct {
	write, read, punch []int
}

func (s *selfTest) run(once bool) error {
	if _, err := s.next(false); err != nil {
		return err
	}
	for i, r := range []round{
		{write: []int{3, 7, 8, 40}, read: []int{5, 6, 41}, punch: []int{20}},
		{write: []int{3, 20, 41}, read: []int{7, 21, 50}},
		{},
	} {
		if once && i == 1 {
			return nil // reading again would tell the same pages
		}
		if err := s.runRound(r); err != nil {
			return err
		}
		got, err := s.next(once || i == 2)
		if err != nil {
			return err
		}
		for page := range pages {
			written, told := slices.Contains(r.write, page), slices.Contains(got, page)
			// A page without content may be told; its reader finds a hole.
			if written && !told || !written && told && (page < 32 && !slices.Contains(r.punch, page)) {
				return fmt.Errorf("page %d: written %v, told %v in round %d: %w", page, written, told, i+1,
					errdefs.ErrNotImplemented)
			}
		}
	}
	return nil
}

// testArmed proves notes that were begun before a tracker came. It has pages in the page table of
// the child and such as only the file has: so does RAM look before a VM wakes.
func (s *selfTest) testArmed(regions []track.Region, files track.Files) error {
	const first, end = 70, 80 // not touched up to here
	if _, err := s.child.ram.WriteAt(make([]byte, (end-first)*pageSize), first*pageSize); err != nil {
		return err
	}
	p := s.child.proc
	if err := track.Arm(p.PID, p.Userfault, s.child.ram); err != nil {
		return err
	}
	r := round{write: []int{4, 60, first + 1}, read: []int{9, 61, first}}
	if err := s.runRound(r); err != nil {
		return err
	}
	t, err := track.Continue(track.UFFD, regions, files)
	if err != nil {
		return err
	}
	s.tracker = t
	got, err := s.next(true)
	if err == nil {
		for page := range pages {
			written, told := slices.Contains(r.write, page), slices.Contains(got, page)
			if written && !told || !written && told && (page < 20 || page >= first && page < end) {
				err = fmt.Errorf("page %d: written %v, told %v of notes that were there: %w", page, written, told,
					errdefs.ErrNotImplemented)
			}
		}
	}
	return errors.Join(err, t.Stop(), s.testAfter())
}

func (s *selfTest) runRound(r round) error {
	for _, page := range r.punch {
		err := unix.Fallocate(int(s.child.ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(page)*pageSize,
			pageSize)
		if err != nil {
			return fmt.Errorf("punch: %w", err)
		}
	}
	for _, page := range r.write {
		if _, err := s.child.order(s.ctx, orderWrite, page); err != nil {
			return fmt.Errorf("ask child: %w", err)
		}
	}
	for _, page := range r.read {
		if _, err := s.child.order(s.ctx, orderRead, page); err != nil {
			return fmt.Errorf("ask child: %w", err)
		}
	}
	return nil
}

func (s *selfTest) next(last bool) (list []int, err error) {
	_, err = s.tracker.Next(last, func(offset, end int64) {
		for ; offset < end; offset += pageSize {
			list = append(list, int(offset/pageSize))
		}
	})
	return list, err
}

// testAfter wants a child that writes as ever.
func (s *selfTest) testAfter() error {
	_, err := s.child.order(s.ctx, orderWrite, 3)
	return err
}
