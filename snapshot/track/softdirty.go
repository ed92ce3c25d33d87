package track

import (
	"encoding/binary"
	"fmt"

	"github.com/containerd/errdefs"
)

const (
	pagemapEntry     = 8
	pagemapDirty     = 1 << 55
	pagemapPresent   = 1 << 63
	clearSoftDirty   = "4" // proc(5)
	pageSize         = 4096
	pagemapReadBytes = 512 << 10
)

// softDirty has the kernel set a bit for each page that is written. Reading the bits and
// clearing them are two steps, so only the last read counts. Before it each Next begins anew,
// and everything has to be compared in the interval. The bit of a page is lost when its page
// table entry goes: after a page that was swapped out is read back, it looks unwritten. So an
// interval in which the host took pages back answers that it does not know.
type softDirty struct {
	regions []Region
	files   Files
	armed   bool
	before  reclaim // when the interval began
}

func (s *softDirty) Next(last bool, written func(offset, end int64)) (known bool, err error) {
	if !last || !s.armed {
		if s.before, err = readReclaim(s.files.Vmstat); err != nil {
			return false, err
		}
		if _, err := s.files.Clear.WriteString(clearSoftDirty); err != nil {
			return false, fmt.Errorf("clear soft-dirty bits: %w", err)
		}
		s.armed = true
		return false, nil
	}
	buf := make([]byte, pagemapReadBytes)
	for _, r := range s.regions {
		if err := s.read(r, buf, written); err != nil {
			return false, err
		}
	}
	after, err := readReclaim(s.files.Vmstat)
	if err != nil {
		return false, err
	}
	return s.before.none(after), nil
}

// Between would lose what is written between reading and clearing.
func (s *softDirty) Between() bool { return false }

func (s *softDirty) read(r Region, buf []byte, written func(offset, end int64)) error {
	for done := int64(0); done < r.Length; {
		part := buf[:min(int64(len(buf)), (r.Length-done)/pageSize*pagemapEntry)]
		if len(part) == 0 {
			return fmt.Errorf("region of %d bytes: %w", r.Length, errdefs.ErrInvalidArgument)
		}
		at := int64(r.Address) + done
		if _, err := s.files.Pagemap.ReadAt(part, at/pageSize*pagemapEntry); err != nil {
			return fmt.Errorf("read pagemap: %w", err)
		}
		dirtyRuns(part, r.Offset+done, written)
		done += int64(len(part)) / pagemapEntry * pageSize
	}
	return nil
}

// dirtyRuns joins pages. One that is not in the page table may have lost its bit: it
// counts as written.
func dirtyRuns(entries []byte, offset int64, written func(offset, end int64)) {
	begin := int64(-1)
	for ; len(entries) > 0; entries, offset = entries[pagemapEntry:], offset+pageSize {
		e := binary.LittleEndian.Uint64(entries)
		switch dirty := e&pagemapDirty != 0 || e&pagemapPresent == 0; {
		case dirty && begin < 0:
			begin = offset
		case !dirty && begin >= 0:
			written(begin, offset)
			begin = -1
		}
	}
	if begin >= 0 {
		written(begin, offset)
	}
}

// Stop has nothing to undo: bits that are not read cost nothing once they are set.
func (s *softDirty) Stop() error { return nil }
