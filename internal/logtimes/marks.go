package logtimes

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Mark says that a log was written at Time from the byte Offset on, by the VM of that UID; empty: not known.
type Mark struct {
	Offset int64
	Time   time.Time
	UID    string
}

// Marks are in the order of their offsets.
type Marks []Mark

// At is the mark of the byte at an offset; false: that is not known.
func (m Marks) At(offset int64) (Mark, bool) {
	i := m.after(offset)
	if i == 0 {
		return Mark{}, false
	}
	return m[i-1], true
}

// after is the place of the first mark after an offset.
func (m Marks) after(offset int64) int {
	return sort.Search(len(m), func(i int) bool { return m[i].Offset > offset })
}

// Read answers the marks of an open log. There are none of a log that an earlier build wrote. A line that is none, as
// the last one may be, is left out.
func Read(f *os.File, log string) (Marks, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	path, ok := file(log, info)
	if !ok {
		return nil, nil
	}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return nil, err
	}
	return parse(data), nil
}

func parse(data []byte) Marks {
	var all, owners Marks
	for line := range bytes.Lines(data) {
		text, whole := strings.CutSuffix(string(line), "\n")
		from, word, _ := strings.Cut(text, " ")
		offset, err := strconv.ParseInt(from, 10, 64)
		if !whole || err != nil || offset < 0 {
			continue
		}
		if uid, is := strings.CutPrefix(word, owned); is {
			owners = append(owners, Mark{Offset: offset, UID: uid})
		} else if nano, err := strconv.ParseInt(word, 10, 64); err == nil {
			all = append(all, Mark{Offset: offset, Time: time.Unix(0, nano)})
		}
	}
	byOffset := func(a, b Mark) int { return cmp.Compare(a.Offset, b.Offset) }
	slices.SortStableFunc(all, byOffset)
	slices.SortStableFunc(owners, byOffset)
	for i := range all {
		owner, _ := owners.At(all[i].Offset)
		all[i].UID = owner.UID
	}
	return all
}
