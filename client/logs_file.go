package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// logReader reads a log that is rotated: a file that is full becomes PATH.1, the one of that name PATH.2.
type logReader struct {
	path string
	out  io.Writer
	file *os.File // the newest one, read so far; nil: there is none yet
	// times shows lines with their times, or those of some time alone; nil: all as they are.
	times *timedLines
}

func (l *logReader) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// begin writes what is there, or so many lines of its end. ErrNotExist: there is no file.
func (l *logReader) begin(tail int) error {
	files, err := l.newer(nil)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fs.ErrNotExist
	}
	if l.times != nil {
		if err := l.times.begin(files, l.path); err != nil {
			return errors.Join(err, closeAll(files))
		}
	}
	if tail >= 0 {
		left, i := tail, len(files)-1
		for ; i >= 0; i-- {
			found, err := lastLines(files[i], left)
			if err != nil {
				return errors.Join(err, closeAll(files))
			}
			if left -= found; left <= 0 {
				break
			}
		}
		if i > 0 {
			if err := closeAll(files[:i]); err != nil {
				return err
			}
			files = files[i:]
		}
	}
	return l.take(files)
}

// more writes what has come since.
func (l *logReader) more() error {
	if l.file != nil {
		now, err := os.Stat(l.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is being rotated
		}
		if err != nil {
			return err
		}
		own, err := l.file.Stat()
		if err != nil {
			return err
		}
		if at, err := l.file.Seek(0, io.SeekCurrent); err == nil && own.Size() < at { // it was emptied
			if _, err := l.file.Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
		if err := l.copy(l.file); err != nil || os.SameFile(own, now) {
			return err
		}
	}
	files, err := l.newer(l.file)
	if err != nil || len(files) == 0 {
		return err
	}
	l.close()
	return l.take(files)
}

// copy writes what a file has from where it is read.
func (l *logReader) copy(f *os.File) error {
	if l.times != nil {
		return l.times.copy(l.out, f, l.path)
	}
	_, err := io.Copy(l.out, f)
	return err
}

// take writes files, the oldest first, and keeps the last one.
func (l *logReader) take(files []*os.File) error {
	l.file = files[len(files)-1]
	for i, f := range files {
		if err := l.copy(f); err != nil {
			return errors.Join(err, closeAll(files[i:len(files)-1]))
		}
		if f != l.file {
			f.Close()
		}
	}
	return nil
}

// newer opens the files of the log that are newer than than, the oldest first; nil: all. A file that is renamed
// meanwhile is met once.
func (l *logReader) newer(than *os.File) (files []*os.File, err error) {
	var known []fs.FileInfo
	if than != nil {
		info, err := than.Stat()
		if err != nil {
			return nil, err
		}
		known = append(known, info)
	}
	stop := len(known)
	for i, name := 0, l.path; ; i, name = i+1, fmt.Sprintf("%s.%d", l.path, i+1) {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			break
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, closeAll(files))
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close(), closeAll(files))
		}
		at := slices.IndexFunc(known, func(k fs.FileInfo) bool { return os.SameFile(k, info) })
		if at >= 0 {
			f.Close()
			if at < stop {
				break
			}
			continue
		}
		known, files = append(known, info), append(files, f)
	}
	slices.Reverse(files)
	return files, nil
}

func closeAll(files []*os.File) (err error) {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// tailBlock is how much of a file's end is looked at at once.
const tailBlock = 64 << 10

// lastLines leaves the file where its last n lines begin, and answers how many there are, at most n.
func lastLines(f *os.File, n int) (found int, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return 0, err
	}
	at := size
	for buf := make([]byte, tailBlock); at > 0; {
		length := min(int64(len(buf)), at)
		at -= length
		if _, err := f.ReadAt(buf[:length], at); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		block := buf[:length]
		if at+length == size && block[length-1] == '\n' { // the end of the last line
			block = block[:length-1]
		}
		for end := len(block); end >= 0; {
			i := bytes.LastIndexByte(block[:end], '\n')
			if i < 0 {
				break
			}
			if found++; found == n {
				_, err := f.Seek(at+int64(i)+1, io.SeekStart)
				return found, err
			}
			end = i
		}
	}
	if size > 0 {
		found++ // the first line
	}
	_, err = f.Seek(0, io.SeekStart)
	return found, err
}
