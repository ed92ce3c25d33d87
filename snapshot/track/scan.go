package track

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

// partSpan is what one core scans at a time, in bytes of the RAM file. While the kernel walks
// over it, no thread of the VMM can map anything, start another one, or end. A variable for the tests.
var partSpan int64 = 256 << 20

// scan reads and, unless it is the last one, arms: all cores, a part each.
func (u *uffd) scan(last bool, written func(offset, end int64)) error {
	what := scanArg{flags: scanCheckAsync, categoryMask: pageIsWritten, categoryReturn: pageIsWritten}
	if !last {
		what.flags |= scanWPMatching
	}
	var mu sync.Mutex
	tell := func(offset, end int64) {
		mu.Lock()
		defer mu.Unlock()
		written(offset, end)
	}
	size := int64(len(u.tables)) * tableSpan
	var g errgroup.Group
	var next atomic.Int64
	for range min(int64(runtime.GOMAXPROCS(0)), (size+partSpan-1)/partSpan) {
		g.Go(func() error {
			w := u.walker()
			for {
				from := next.Add(partSpan) - partSpan
				if from >= size {
					return nil
				}
				if err := u.part(w, from, min(from+partSpan, size), what, tell); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// part scans a part of the RAM file. Pages that the kernel has taken out of the page table count
// as written: what was noted of them is lost. They are looked for in a second walk, after the
// first. That takes part of the time that one walk for both would: that one would arm what is
// armed. It spares what has no page tables: all of it would seem to be taken out.
func (u *uffd) part(w walker, from, to int64, what scanArg, written func(offset, end int64)) error {
	err := w.walk(from, to, func(offset, end int64) {
		u.has(offset, end)
		written(offset, end)
	}, what)
	for at := from; err == nil && at < to; at += tableSpan {
		end := at
		for end < to && u.tables[end/tableSpan] {
			end += tableSpan
		}
		if end > at {
			err = w.walk(at, end, written, taken)
			at = end
		}
	}
	return err
}

// taken is a scan for pages that the kernel has taken out of the page table.
var taken = scanArg{
	categoryInverted: pageIsPresent | pageIsSwapped, categoryMask: pageIsPresent | pageIsSwapped,
	categoryReturn: pageIsPresent,
}

// walker is one goroutine's.
type walker struct {
	regions []Region
	pagemap *os.File
	vec     []scanned
}

func (u *uffd) walker() walker {
	return walker{u.regions, u.files.Pagemap, make([]scanned, scanRegions)}
}

// walk scans a part of the RAM file.
func (w walker) walk(from, to int64, found func(offset, end int64), what scanArg) error {
	for _, r := range w.regions {
		first, last := max(from, r.Offset)-r.Offset, min(to-r.Offset, r.Length)
		if first >= last {
			continue
		}
		end := r.Address + uint64(last)
		for at := r.Address + uint64(first); at < end; {
			arg := new(scanArg)
			*arg = what
			arg.size, arg.start, arg.end = scanArgSize, at, end
			arg.vec, arg.vecLen = uint64(uintptr(unsafe.Pointer(&w.vec[0]))), uint64(len(w.vec))
			n, err := ioctlN(w.pagemap, ioctlPagemapScan, unsafe.Pointer(arg))
			runtime.KeepAlive(w.vec)
			if err != nil {
				return fmt.Errorf("read what was written: %w", err)
			}
			for _, s := range w.vec[:n] {
				found(r.Offset+int64(s.start-r.Address), r.Offset+int64(s.end-r.Address))
			}
			if arg.walkEnd <= at {
				return fmt.Errorf("read what was written: no progress at %#x: %w", at, errdefs.ErrInternal)
			}
			at = arg.walkEnd
		}
	}
	return nil
}
