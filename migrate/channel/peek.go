package channel

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/version"
)

// maxHello is more than a ClientHello of any client takes.
const maxHello = 16 << 10

// Pauses between two looks at a message of which a part has come, the first and the longest: who
// sends a byte and then none shall cost nothing.
const (
	peekPause    = 2 * time.Millisecond
	peekPauseMax = 256 * time.Millisecond
)

func rawOf(c net.Conn) (syscall.RawConn, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("connection %T has no descriptor: %w", c, errdefs.ErrInvalidArgument)
	}
	return sc.SyscallConn()
}

// Peek answers the name that a TLS client asks for, and whether it wants to stream pages. The
// bytes stay in the socket. What is no TLS at all wants no pages: the program that is handed the
// connection will say so.
func Peek(ctx context.Context, c net.Conn) (name string, pages bool, err error) {
	raw, err := rawOf(c)
	if err != nil {
		return "", false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if stop() {
			return
		}
		err = errors.Join(err, ctx.Err())
	}()
	buf := make([]byte, maxHello)
	for seen, pause := 0, peekPause; ; pause = min(2*pause, peekPauseMax) {
		n, over, err := peek(raw, buf)
		if err != nil {
			return "", false, fmt.Errorf("look at the first message: %w", err)
		}
		if over && n == seen {
			return "", false, fmt.Errorf("look at the first message: %w", io.ErrUnexpectedEOF)
		}
		if n > seen {
			seen = n
			if hello, whole := parse(buf[:n]); whole || n == len(buf) {
				if hello == nil {
					return "", false, nil
				}
				return hello.ServerName, slices.Contains(hello.SupportedProtos, version.PagesALPN), nil
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return "", false, fmt.Errorf("look at the first message: %w", ctx.Err())
		}
	}
}

// peek answers how much has come, and whether that is all that comes.
func peek(raw syscall.RawConn, buf []byte) (n int, over bool, err error) {
	rerr := raw.Read(func(fd uintptr) bool {
		for {
			n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_PEEK)
			if err == unix.EINTR {
				continue
			}
			state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			_, _ = unix.Poll(state, 0)
			over = n == 0 || state[0].Revents&unix.POLLRDHUP != 0
			return err != unix.EAGAIN
		}
	})
	return n, over, errors.Join(rerr, err)
}

var errSeen = errors.New("seen")

// parse answers the ClientHello in data; whole says that more bytes change nothing.
func parse(data []byte) (hello *tls.ClientHelloInfo, whole bool) {
	in := &recorded{Reader: bytes.NewReader(data)}
	err := tls.Server(in, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = h
		return nil, errSeen
	}}).Handshake()
	return hello, errors.Is(err, errSeen) || !in.short
}

// recorded is the connection of a client that has said no more than so much.
type recorded struct {
	*bytes.Reader
	short bool // more was wanted
}

func (r *recorded) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.short = true
	}
	return n, err
}

func (r *recorded) Write(p []byte) (int, error)      { return len(p), nil }
func (r *recorded) Close() error                     { return nil }
func (r *recorded) LocalAddr() net.Addr              { return nil }
func (r *recorded) RemoteAddr() net.Addr             { return nil }
func (r *recorded) SetDeadline(time.Time) error      { return nil }
func (r *recorded) SetReadDeadline(time.Time) error  { return nil }
func (r *recorded) SetWriteDeadline(time.Time) error { return nil }
