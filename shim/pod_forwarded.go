package shim

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

const (
	// forwardChunk is how much of a connection the shim holds in each direction.
	forwardChunk = 64 << 10
	// forwardWait is how long one call of the guest waits for bytes.
	forwardWait = 30 * time.Second
	// forwardPause is the pause after an answer of the guest that brought nothing.
	forwardPause = 50 * time.Millisecond
)

// abandonedAfter is how long a connection lives on whose client has closed it, or its half, and on which no byte moves.
// A guest that hangs must not keep it. A variable for the tests.
var abandonedAfter = time.Minute

// forwarded is one connection, between a client on the host and the guest.
type forwarded struct {
	agent Agent
	id    string // in the guest
	conn  *net.TCPConn
	moved atomic.Int64 // when the last bytes moved, in ns since begun
	begun time.Time
}

// carry carries bytes until both directions have ended, one of them has failed, or ctx ends.
func (c *forwarded) carry(ctx context.Context) {
	c.begun = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { reset(c.conn) })
	var both sync.WaitGroup
	for _, direction := range []func(context.Context) error{c.toGuest, c.toClient} {
		both.Go(func() {
			if direction(ctx) != nil {
				cancel()
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		both.Wait()
	}()
	c.watch(over, cancel)
	if stop() {
		_ = c.conn.Close()
	}
}

// watch ends a connection that was abandoned, and returns when it is over.
func (c *forwarded) watch(over <-chan struct{}, cancel func()) {
	look := time.NewTicker(abandonedAfter / 4)
	defer look.Stop()
	for {
		select {
		case <-over:
			return
		case <-look.C:
			if time.Since(c.begun)-time.Duration(c.moved.Load()) > abandonedAfter && c.halfOpen() {
				cancel()
			}
		}
	}
}

// halfOpen reports whether the client has closed the connection, or its half of it. What it sent before may be unread.
func (c *forwarded) halfOpen() (is bool) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		is = err != nil || info.State != unix.BPF_TCP_ESTABLISHED
	})
	return is || err != nil
}

func (c *forwarded) note() { c.moved.Store(int64(time.Since(c.begun))) }

// toGuest carries what the client sends, and its end.
func (c *forwarded) toGuest(ctx context.Context) error {
	buf := make([]byte, forwardChunk)
	for at := uint64(0); ; {
		n, err := c.conn.Read(buf)
		for data := buf[:n]; len(data) > 0; {
			r, err := c.agent.Write(ctx, &agentv1.WriteRequest{Id: c.id, Offset: at, Data: data})
			if err != nil {
				return err
			}
			if r.GetClosed() { // the guest's program takes no more, and may send still
				return nil
			}
			taken := min(uint64(len(data)), r.GetOffset()-min(r.GetOffset(), at))
			if taken == 0 {
				retry.Sleep(ctx, forwardPause)
				continue
			}
			at, data = at+taken, data[taken:]
			c.note()
		}
		if err == io.EOF {
			_, err := c.agent.CloseStdin(ctx, &agentv1.CloseStdinRequest{Id: c.id, Offset: at})
			return err
		}
		if err != nil {
			return err
		}
	}
}

// toClient carries what the guest sends, and its end.
func (c *forwarded) toClient(ctx context.Context) error {
	for at := uint64(0); ; {
		asked := time.Now()
		r, err := c.agent.Read(ctx, &agentv1.ReadRequest{
			Id: c.id, Stream: agentv1.Stream_STREAM_STDOUT, Offset: at, Max: forwardChunk,
			WaitMs: uint32(forwardWait.Milliseconds()),
		})
		switch {
		case err != nil:
			return err
		case r.GetOffset() != at: // what lies between is lost
			return io.ErrUnexpectedEOF
		}
		n, err := c.conn.Write(r.GetData())
		switch at += uint64(n); {
		case err != nil:
			return err
		case n > 0:
			c.note()
		case !r.GetEof() && time.Since(asked) < forwardPause: // a guest that does not wait must not make the host spin
			retry.Sleep(ctx, forwardPause)
		}
		if r.GetEof() {
			return c.conn.CloseWrite()
		}
	}
}
