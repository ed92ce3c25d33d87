package client

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"godwit.dev/godwit/internal/logtimes"
)

// logReader reads a log that is rotated: a file that is full becomes PATH.1, the one of that name PATH.2.
type logReader struct {
	path string
	out  io.Writer
	uid  string   // of the VM; empty: not known, and all is shown
	file *os.File // the newest one, read so far; nil: there is none yet
	// only: what is there is of another VM, which had the name before.
	only bool
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
	files, _, err := l.open(tail)
	if err != nil {
		return err
	}
	return l.take(files)
}

// open answers the files, the oldest first, each read from where so many last lines begin; below 0: from its beginning.
// whole says that nothing of the log was left out.
func (l *logReader) open(tail int) (files []*os.File, whole bool, err error) {
	if files, err = logtimes.Files(l.path, nil); err != nil {
		return nil, false, err
	}
	if len(files) == 0 {
		return nil, false, fs.ErrNotExist
	}
	if files, err = l.own(files); err != nil {
		return nil, false, errors.Join(err, logtimes.Close(files))
	}
	begin, err := files[0].Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, false, errors.Join(err, logtimes.Close(files))
	}
	if l.times != nil {
		if err := l.times.begin(files, l.path); err != nil {
			return nil, false, errors.Join(err, logtimes.Close(files))
		}
	}
	if tail < 0 {
		return files, true, nil
	}
	i, lines := len(files)-1, 0
	for ; i >= 0; i-- {
		from := int64(0)
		if i == 0 {
			from = begin
		}
		found, err := lastLines(files[i], from, tail-lines)
		if err != nil {
			return nil, false, errors.Join(err, logtimes.Close(files))
		}
		if lines += found; lines >= tail {
			break
		}
	}
	if i > 0 {
		if err := logtimes.Close(files[:i]); err != nil {
			return nil, false, err
		}
		return files[i:], false, nil
	}
	at, err := files[0].Seek(0, io.SeekCurrent)
	return files, at == begin, err
}

// own closes the files that are of a VM that had the name before, and leaves the first of the others where its output
// ends. The newest file stays in any case.
func (l *logReader) own(files []*os.File) ([]*os.File, error) {
	if l.uid == "" {
		return files, nil
	}
	for i := len(files) - 1; i >= 0; i-- {
		begin, err := logtimes.Begin(files[i], l.path, l.uid)
		if err != nil || begin == 0 {
			if err != nil {
				return files, err
			}
			continue
		}
		info, err := files[i].Stat()
		if err != nil {
			return files, err
		}
		whole := begin >= info.Size() // it is the other's
		if whole && i < len(files)-1 {
			return files[i+1:], logtimes.Close(files[:i+1])
		}
		l.only = whole
		if _, err := files[i].Seek(begin, io.SeekStart); err != nil {
			return files, err
		}
		return files[i:], logtimes.Close(files[:i])
	}
	return files, nil
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
	files, err := logtimes.Files(l.path, l.file)
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
			return errors.Join(err, logtimes.Close(files[i:len(files)-1]))
		}
		if f != l.file {
			f.Close()
		}
	}
	return nil
}

// tailBlock is how much of a file's end is looked at at once.
const tailBlock = 64 << 10

// lastLines leaves the file where its last n lines from a byte on begin, and answers how many there are, at most n.
func lastLines(f *os.File, from int64, n int) (found int, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return 0, err
	}
	at := size
	for buf := make([]byte, tailBlock); at > from; {
		length := min(int64(len(buf)), at-from)
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
	if size > from {
		found++ // the first line
	}
	_, err = f.Seek(from, io.SeekStart)
	return found, err
}
