package track

import (
	"errors"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Span is a part of the RAM file.
type Span struct{ Offset, End int64 }

// ArmBut is Arm for RAM that is other than at the beginning of the notes: what was written since stays noted. It is for
// a process that has touched none of its RAM.
func ArmBut(pid, userfault int, ram *os.File, written []Span) error {
	f, regions, err := Find(pid, userfault, ram)
	if err != nil {
		return err
	}
	defer f.Close()
	f.RAM = ram
	u, err := newUFFD(regions, f)
	if err != nil {
		return err
	}
	if err := u.protect(ram, spans(slices.Clone(written)).sorted(), tableSpan); err != nil {
		return errors.Join(err, u.Stop())
	}
	return nil
}

// protect arms what the file has data in, to the next multiples of align, but for what was written: that stays noted.
func (u *uffd) protect(ram *os.File, written spans, align int64) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	arm := func(from, end int64) {
		for at := from; at < end; at += armSpan {
			g.Go(func() error { return u.arm(at, min(at+armSpan, end)) })
		}
	}
	err := dataOf(ram, 0, func(data, hole int64) (int64, error) {
		at, end := data/align*align, (hole+align-1)/align*align
		for at < end {
			for len(written) > 0 && written[0].End <= at {
				written = written[1:]
			}
			if len(written) == 0 || written[0].Offset >= end {
				arm(at, end)
				break
			}
			arm(at, written[0].Offset)
			at = max(at, written[0].End)
		}
		return end, nil
	})
	return errors.Join(err, g.Wait())
}

type spans []Span

// sorted joins those that touch.
func (s spans) sorted() (out spans) {
	slices.SortFunc(s, func(a, b Span) int { return int(min(1, max(-1, a.Offset-b.Offset))) })
	for _, p := range s {
		if n := len(out); n > 0 && p.Offset <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, p.End)
			continue
		}
		out = append(out, p)
	}
	return out
}
