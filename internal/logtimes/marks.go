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

// From is the first mark of the bytes from an offset on; false: they have none.
func (m Marks) From(offset int64) (Mark, bool) {
	i := sort.Search(len(m), func(i int) bool { return m[i].Offset >= offset })
	if mark, known := m.At(offset); known && (i == len(m) || m[i].Offset > offset) {
		return mark, true
	}
	if i == len(m) {
		return Mark{}, false
	}
	return m[i], true
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
	all, _, err := read(info, log)
	return all, err
}

// Begin is the byte of an open log from which on no other VM has written than the one of that UID: 0 if none has, and
// the end if another one was the last. What is not known as another VM's is not taken for such.
func Begin(f *os.File, log, uid string) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	_, owners, err := read(info, log)
	for i := len(owners) - 1; i >= 0 && err == nil; i-- {
		if o := owners[i].UID; o == "" || o == uid {
			continue
		}
		if i == len(owners)-1 {
			return info.Size(), nil
		}
		return min(info.Size(), owners[i+1].Offset), nil
	}
	return 0, err
}

// read answers the marks of a log, and of what bytes its owners are.
func read(info fs.FileInfo, log string) (all, owners Marks, err error) {
	path, ok := file(log, info)
	if !ok {
		return nil, nil, nil
	}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return nil, nil, err
	}
	all, owners = parse(data)
	return all, owners, nil
}

func parse(data []byte) (all, owners Marks) {
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
	return all, owners
}
