package logtimes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Files opens the files of a log that is rotated: one that is full becomes PATH.1, the one of that name PATH.2. They
// are those that are newer than than, the oldest first; nil: all. A file that is renamed meanwhile is met once.
func Files(path string, than *os.File) (files []*os.File, err error) {
	var known []fs.FileInfo
	if than != nil {
		info, err := than.Stat()
		if err != nil {
			return nil, err
		}
		known = append(known, info)
	}
	stop, last := len(known), 0
	for i, name := 0, path; ; i, name = i+1, fmt.Sprintf("%s.%d", path, i+1) {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) && ended(i, last) {
			break
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		last = i
		if err != nil {
			return nil, errors.Join(err, Close(files))
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close(), Close(files))
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

// ended reports whether a log has no file of number i nor later ones. A rotation that is under way leaves one number
// free for a moment: last is the one that was met before.
func ended(i, last int) bool { return i > last+1 }

// Close closes all.
func Close(files []*os.File) (err error) {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
