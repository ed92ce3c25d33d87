// Package logtimes keeps the times at which a log was written in a file of its own, so that the log stays plain text.
// The times of DIR/NAME are in DIR/.times/NAME.INODE: a log that is rotated keeps them. Each line there is
// "OFFSET NANOSECONDS": from that byte on, the log was written at that time, in nanoseconds since 1970.
package logtimes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The times of a log take at most free bytes, and a share of the log: a program that writes single bytes has fewer
// times than bytes.
const (
	free    = 64 << 10
	share   = 4
	maxFile = 64 << 20 // of which more was not written here
)

func dir(log string) string { return filepath.Join(filepath.Dir(log), ".times") }

func file(log string, info fs.FileInfo) (string, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return "", false
	}
	return filepath.Join(dir(log), filepath.Base(log)+"."+strconv.FormatUint(st.Ino, 10)), true
}

// Note writes down when the bytes of a log from start on were written. f is the open log, and log its path before any
// rotation. The first bytes of a log make its times anew: an inode can be another file's again.
func Note(f *os.File, log string, start int64, at time.Time) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	path, ok := file(log, info)
	if !ok {
		return nil
	}
	flags := os.O_APPEND | os.O_CREATE | os.O_WRONLY | unix.O_NOFOLLOW
	if start == 0 {
		flags |= os.O_TRUNC
	}
	out, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir(log), 0o700); err == nil {
			out, err = os.OpenFile(path, flags, 0o600)
		}
	}
	if err != nil {
		return err
	}
	if size, err := out.Stat(); err != nil || size.Size() > free+start/share {
		return errors.Join(err, out.Close())
	}
	_, err = fmt.Fprintf(out, "%d %d\n", start, at.UnixNano())
	return errors.Join(err, out.Close())
}

// Sweep removes the times of files that are no part of a log any more.
func Sweep(log string) error {
	kept := map[string]bool{}
	for i, name := 0, log; ; i, name = i+1, fmt.Sprintf("%s.%d", log, i+1) {
		info, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) && i == 0 {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		if path, ok := file(log, info); ok {
			kept[filepath.Base(path)] = true
		}
	}
	entries, err := os.ReadDir(dir(log))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		inode, own := strings.CutPrefix(e.Name(), filepath.Base(log)+".")
		if _, perr := strconv.ParseUint(inode, 10, 64); own && perr == nil && !kept[e.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(dir(log), e.Name())))
		}
	}
	return err
}

// Mark says that a log was written at Time from the byte Offset on.
type Mark struct {
	Offset int64
	Time   time.Time
}

// Marks are in the order of their offsets.
type Marks []Mark

// At is when the byte at an offset was written; false: that is not known.
func (m Marks) At(offset int64) (time.Time, bool) {
	i := sort.Search(len(m), func(i int) bool { return m[i].Offset > offset })
	if i == 0 {
		return time.Time{}, false
	}
	return m[i-1].Time, true
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
	size, err := os.Stat(path)
	if err == nil && size.Size() > maxFile {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all Marks
	for line := range bytes.Lines(data) {
		text, whole := strings.CutSuffix(string(line), "\n")
		from, at, _ := strings.Cut(text, " ")
		offset, oerr := strconv.ParseInt(from, 10, 64)
		nano, nerr := strconv.ParseInt(at, 10, 64)
		if whole && oerr == nil && nerr == nil {
			all = append(all, Mark{offset, time.Unix(0, nano)})
		}
	}
	slices.SortStableFunc(all, func(a, b Mark) int { return int(a.Offset - b.Offset) })
	return all, err
}
