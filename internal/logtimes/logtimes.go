// Package logtimes keeps the times at which a log was written in a file of its own, so that the log stays plain text.
// The times of DIR/NAME are in DIR/.times/NAME.INODE: a log that is rotated keeps them. Each line there is
// "OFFSET NANOSECONDS": from that byte on, the log was written at that time, in nanoseconds since 1970. A line
// "OFFSET =UID" says whose output begins there: VMs that have one name after another may have one log.
package logtimes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// The times of a log take a share of it: a program that writes single bytes has fewer times than bytes. Of a log that
// grows slowly each second has one, up to the size of the log. One that has no bound gets a time a minute at last.
const (
	free    = 64 << 10
	share   = 4
	dense   = 16 << 20 // up to here each write has a time
	seconds = 32 << 20 // and up to here each second
	maxFile = 64 << 20 // of which more is neither written nor read
)

// due reports whether a write at an offset gets a time. size is that of the times, and since how old the last one is.
func due(size, start int64, since time.Duration) bool {
	switch {
	case size <= min(free+start/share, dense):
		return true
	case size <= min(free+start, seconds):
		return since >= time.Second
	}
	return size < maxFile && since >= time.Minute
}

func dir(log string) string { return filepath.Join(filepath.Dir(log), ".times") }

func file(log string, info fs.FileInfo) (string, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return "", false
	}
	return filepath.Join(dir(log), filepath.Base(log)+"."+strconv.FormatUint(st.Ino, 10)), true
}

// Writer writes the times of one VM's output, from several goroutines.
type Writer struct {
	Path string // of the log before any rotation
	UID  string // of the VM; empty: not known

	noted atomic.Uint64 // the inode of the file that has the UID
}

// Note writes down when the bytes of a log from start on were written. f is the open log. The first bytes of a log make
// its times anew: an inode can be another file's again.
func (w *Writer) Note(f *os.File, start int64, at time.Time) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	path, ok := file(w.Path, info)
	if !ok {
		return nil
	}
	flags := 0
	if start == 0 {
		flags = os.O_TRUNC
	}
	out, err := w.open(path, flags)
	if err != nil {
		return err
	}
	inode := info.Sys().(*syscall.Stat_t).Ino
	line := fmt.Sprintf("%d %d\n", start, at.UnixNano())
	begins := start == 0 || w.noted.Load() != inode
	if begins {
		line += w.ownedFrom(start)
	} else if size, err := out.Stat(); err != nil || !due(size.Size(), start, at.Sub(size.ModTime())) {
		return errors.Join(err, out.Close())
	}
	_, err = out.WriteString(line)
	if err == nil && begins {
		w.noted.Store(inode)
	}
	return errors.Join(err, out.Close())
}

// Own writes down that the output of the VM begins at the end of a log that has some output already. Then what comes is
// known as the VM's before it comes. The first bytes of a log, and a VM of an unknown UID, need no such line.
func (w *Writer) Own(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 || w.owner() == "" {
		return err
	}
	path, ok := file(w.Path, info)
	if !ok {
		return nil
	}
	out, err := w.open(path, 0)
	if err != nil {
		return err
	}
	_, err = out.WriteString(w.ownedFrom(info.Size()))
	return errors.Join(err, out.Close())
}

// open opens the times of a log to append to them.
func (w *Writer) open(path string, flags int) (*os.File, error) {
	flags |= os.O_APPEND | os.O_CREATE | os.O_WRONLY | unix.O_NOFOLLOW
	out, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir(w.Path), 0o700); err == nil {
			out, err = os.OpenFile(path, flags, 0o600)
		}
	}
	return out, err
}

// ownedFrom is the line that says that output from a byte on is the VM's.
func (w *Writer) ownedFrom(start int64) string {
	return fmt.Sprintf("%d %s%s\n", start, owned, w.owner())
}

// owned begins the second word of a line that says whose output begins there.
const owned = "="

// owner is the UID as it is written. A VM may have come from a node that lies.
func (w *Writer) owner() string {
	if strings.ContainsFunc(w.UID, func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		return ""
	}
	return w.UID
}

// Sweep removes the times of files that are no part of a log any more.
func Sweep(log string) error {
	kept, last := map[string]bool{}, 0
	for i, name := 0, log; ; i, name = i+1, fmt.Sprintf("%s.%d", log, i+1) {
		info, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) && ended(i, last) {
			break
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		last = i
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
