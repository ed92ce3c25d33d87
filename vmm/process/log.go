package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// A guest can make its VMM complain, and its console talk, for as long as it likes: a log is cut when it is longer than
// MaxLog, and its last part is kept once, in a file next to it.
const (
	MaxLog         = 1 << 20
	rotateInterval = 30 * time.Second
)

// OpenLog opens what rotate may cut: all that is written goes to its end.
func OpenLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// LogPath is where f can be cut, empty if it is no file that is only appended to.
func LogPath(f *os.File) string {
	if f == nil {
		return ""
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return f.Name()
}

// rotate copies and empties a log that has grown too long. Who appends to it keeps the
// file that he has; what he writes between the two steps is lost.
func rotate(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= MaxLog {
		return err
	}
	from, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := from.Seek(-MaxLog, io.SeekEnd); err != nil {
		return err
	}
	to, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.LimitReader(from, MaxLog))
	return errors.Join(err, to.Close(), from.Truncate(0))
}

// WaitRotating is Wait, and cuts the logs meanwhile; warn hears what goes wrong with them.
func (p *Process) WaitRotating(warn func(error), logs ...string) error {
	tick := time.NewTicker(rotateInterval)
	defer tick.Stop()
	gone := make(chan error, 1)
	go func() { gone <- p.Wait() }()
	for {
		select {
		case err := <-gone:
			return err
		case <-tick.C:
		}
		for _, path := range logs {
			if path == "" {
				continue
			}
			if err := rotate(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				warn(err)
			}
		}
	}
}

// LogTail is the end of what the program had to say, for an error's text.
func LogTail(path, program string) string {
	const most = 512
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return ""
	}
	tail := make([]byte, min(most, info.Size()))
	n, err := f.ReadAt(tail, info.Size()-int64(len(tail)))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return fmt.Sprintf(" (%s: %q)", program, tail[:n])
}
