package network

import (
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

// refuses is a sink whose writes fail.
type refuses struct {
	err   error
	count int
}

func (r *refuses) Write(p []byte) (int, error) {
	r.count++
	return len(p), r.err
}

// A frame that a tap does not take is lost, and the next one is tried: only a sink that is gone ends the server.
func TestDeliver(t *testing.T) {
	for err, goes := range map[error]bool{nil: true, unix.EIO: true, unix.EMSGSIZE: true, unix.EINVAL: true,
		unix.ENOBUFS: true, unix.EBADFD: false, fs.ErrClosed: false} {
		if err != nil {
			err = fmt.Errorf("write: %w", err)
		}
		sink := &refuses{err: err}
		if got := deliver(sink, [][]byte{{1}, {2}}); got != goes || (sink.count == 2) != goes {
			t.Errorf("%v: it goes on: %v, after %d frames", err, got, sink.count)
		}
	}
}
