package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

var errGone = fmt.Errorf("agent connection closed: %w", errdefs.ErrUnavailable)

var errPanicked = fmt.Errorf("the guest's kernel has panicked: %w", errdefs.ErrUnavailable)

// BootError says that the guest's agent did not answer in time, or that the VM ended or
// its kernel gave up before. Its class is DeadlineExceeded or Unavailable.
type BootError struct {
	Timeout time.Duration
	Console string // path of the console log, may be empty
	Tail    string // the end of that log
	Err     error
}

// consoleTail is how much of the console log an error shows.
const consoleTail = 4 << 10

func newBootError(opts Options, err error) *BootError {
	return &BootError{Timeout: opts.BootTimeout, Console: opts.Console, Tail: tail(opts.Console), Err: err}
}

// Error implements error.
func (e *BootError) Error() string {
	s := fmt.Sprintf("boot guest: no answer from its agent within %v (timeouts.boot): %v", e.Timeout, e.Err)
	if !errors.Is(e.Err, context.DeadlineExceeded) { // the VM ended, or its kernel gave up
		s = fmt.Sprintf("boot guest: its agent does not answer: %v", e.Err)
	}
	if e.Console != "" {
		s += fmt.Sprintf("; console log %s ends with %q", e.Console, e.Tail)
	}
	return s
}

// Unwrap gives the class.
func (e *BootError) Unwrap() error { return e.Err }

// tail returns the end of a file, empty if there is none.
func tail(path string) string {
	// The VMM writes it: it is none that a guest which took the VMM over could put in its place.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > consoleTail {
		_, _ = f.Seek(-consoleTail, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, consoleTail))
	return string(bytes.TrimSpace(b))
}
