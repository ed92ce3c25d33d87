package cloudhypervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// A guest can make its VMM complain for as long as it likes: the log is cut when it is
// longer than maxLog, and what it said last is kept beside it once.
const (
	maxLog         = 1 << 20
	rotateInterval = 30 * time.Second
)

// rotate copies and empties a log that has grown too long. The VMM appends to the file
// that it has; what it writes between the two steps is lost.
func rotate(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= maxLog {
		return err
	}
	from, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := from.Seek(-maxLog, io.SeekEnd); err != nil {
		return err
	}
	to, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.LimitReader(from, maxLog))
	return errors.Join(err, to.Close(), from.Truncate(0))
}

// logTail is the end of what the VMM had to say, for an error's text.
func logTail(dir string) string {
	const most = 512
	f, err := os.Open(logPath(dir))
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
	return fmt.Sprintf(" (Cloud Hypervisor: %q)", tail[:n])
}
