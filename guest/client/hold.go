package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/turn"
)

// Hold has the guest's channel stand still until Release: nothing is read from it, and it is neither opened nor closed.
// QEMU hands on what the guest of a paused VM had written before, whenever the host reads. By that it changes the rings
// of the port, which are in RAM, and its device state. So the channel is held from before the state is saved until the
// VM runs. To hold what is held changes nothing.
func (a *Agent) Hold(ctx context.Context) error {
	a.mu.Lock()
	held, stopDialing := a.held != nil, a.stopDialing
	a.holds = !held
	a.mu.Unlock()
	if held {
		return nil
	}
	if stopDialing != nil {
		stopDialing() // a guest that stands still answers none
	}
	err := a.opening.Take(ctx)
	a.mu.Lock()
	a.holds = false
	all := slices.Clone(a.channels)
	if err == nil {
		a.held = make(chan struct{})
	}
	a.mu.Unlock()
	if err != nil {
		return fmt.Errorf("hold the agent's channel: %w", err)
	}
	for _, ch := range all {
		if err := ch.stopReading(ctx); err != nil {
			a.Release()
			return fmt.Errorf("hold the agent's channel: %w", err)
		}
	}
	return nil
}

// Release ends Hold. What was to be closed meanwhile is closed.
func (a *Agent) Release() {
	a.mu.Lock()
	held, all, closing := a.held, slices.Clone(a.channels), a.closing
	a.held, a.closing = nil, nil
	a.mu.Unlock()
	if held == nil {
		return
	}
	for _, ch := range all {
		_ = ch.SetReadDeadline(time.Time{})
	}
	for _, conn := range closing {
		_ = conn.Close()
	}
	close(held)
	a.opening.Give()
}

// errHeld is of a channel that is not opened now. It is tried again.
var errHeld = fmt.Errorf("the agent's channel is held: %w", errdefs.ErrUnavailable)

// whileHeld is closed by Release; nil: nothing is held.
func (a *Agent) whileHeld() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// channel is one that can be held.
type channel struct {
	net.Conn
	agent   *Agent
	reading turn.Turn
	gone    chan struct{} // closed by Close
	once    sync.Once
}

func (a *Agent) newChannel(conn net.Conn) *channel {
	return &channel{Conn: conn, agent: a, reading: turn.New(), gone: make(chan struct{})}
}

// stopReading ends a Read under way, which begins again after Release.
func (c *channel) stopReading(ctx context.Context) error {
	_ = c.SetReadDeadline(time.Unix(1, 0)) // it fails on a channel that is closed: its Read ends too
	if err := c.reading.Take(ctx); err != nil {
		return err
	}
	c.reading.Give()
	return nil
}

// Read implements net.Conn.
func (c *channel) Read(p []byte) (int, error) {
	for {
		if held := c.agent.whileHeld(); held != nil {
			select {
			case <-held:
			case <-c.gone:
				return 0, net.ErrClosed
			}
		}
		n, err := c.read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// read is one Read, with the error of a deadline where the channel is held.
func (c *channel) read(p []byte) (int, error) {
	if err := c.reading.Take(context.Background()); err != nil {
		return 0, err
	}
	defer c.reading.Give()
	if c.agent.whileHeld() != nil {
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Read(p)
}

// Held has the session not take the silence for the guest's.
func (c *channel) Held() bool { return c.agent.whileHeld() != nil }

// Close implements net.Conn.
func (c *channel) Close() error {
	c.once.Do(func() { close(c.gone) })
	a := c.agent
	a.mu.Lock()
	a.channels = slices.DeleteFunc(a.channels, func(other *channel) bool { return other == c })
	held := a.held != nil
	if held {
		a.closing = append(a.closing, c.Conn)
	}
	a.mu.Unlock()
	if held {
		return nil
	}
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn: the session asks whether the VMM has taken what was written.
func (c *channel) SyscallConn() (syscall.RawConn, error) {
	conn, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errdefs.ErrNotImplemented
	}
	return conn.SyscallConn()
}
