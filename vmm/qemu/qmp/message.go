package qmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        uint64 `json:"id"`
}

// message is anything that QEMU sends: greeting, answer or event.
type message struct {
	Greeting  json.RawMessage `json:"QMP"`
	ID        uint64          `json:"id"`
	Return    json.RawMessage `json:"return"`
	Error     *failure        `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp stamp           `json:"timestamp"`
}

type failure struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

type stamp struct {
	Seconds int64 `json:"seconds"`
	Micro   int64 `json:"microseconds"`
}

func (s stamp) time() time.Time { return time.Unix(s.Seconds, s.Micro*1000) }

// Error is QEMU's refusal of a command: the monitor works, the VM is as before.
type Error struct {
	Command string
	Class   string // QEMU's: GenericError, DeviceNotFound, ...
	Desc    string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Command, e.Desc) }

// Unwrap gives the class of errdefs. QEMU calls nearly everything a GenericError: that
// the VM, as it is, does not allow it.
func (e *Error) Unwrap() error {
	switch e.Class {
	case "DeviceNotFound":
		return errdefs.ErrNotFound
	case "CommandNotFound":
		return errdefs.ErrNotImplemented
	}
	return errdefs.ErrFailedPrecondition
}

// write sends one request and the descriptor in the same message: QEMU takes a
// descriptor for the command that it came with.
func (c *Client) write(ctx context.Context, r request, file *os.File) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	line = append(line, '\n')
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return fmt.Errorf("monitor is busy: %w", ctx.Err())
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(writeTimeout)
	}
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
	}
	sent, err := c.writeWith(line, file)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if sent > 0 { // half a line: nothing that follows it would be understood
			c.conn.Close()
		}
		return fmt.Errorf("write: %w", context.DeadlineExceeded)
	}
	if err != nil {
		c.conn.Close()
		return fmt.Errorf("write: %w: %w", errdefs.ErrUnavailable, err)
	}
	return nil
}

func (c *Client) writeWith(line []byte, file *os.File) (sent int, err error) {
	if file == nil {
		return c.conn.Write(line)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	// Not file.Fd(): that would make the caller's file blocking.
	ctlErr := raw.Control(func(fd uintptr) {
		sent, _, err = c.conn.WriteMsgUnix(line, syscall.UnixRights(int(fd)), nil)
	})
	if err := errors.Join(ctlErr, err); err != nil || sent == len(line) {
		return sent, err
	}
	n, err := c.conn.Write(line[sent:])
	return sent + n, err
}
