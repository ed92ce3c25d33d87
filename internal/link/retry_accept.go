package link

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// The first and the longest pause after an Accept that has failed, and the time between failures
// that belong to different spells.
const (
	acceptPause    = 5 * time.Millisecond
	acceptPauseMax = time.Second
	acceptSpell    = time.Minute
)

// RetryAccept is l whose Accept ends with l alone. A process or host without descriptors or memory, a
// client that has gone and a network that is away pass: such an Accept is made again, and the log
// has one line for a spell of them. One goroutine accepts at a time.
func RetryAccept(l net.Listener) net.Listener {
	return &retryListener{Listener: l, closed: make(chan struct{})}
}

type retryListener struct {
	net.Listener
	closed chan struct{}
	once   sync.Once
	failed time.Time // when an Accept failed last

	refuse  func(net.Conn) // nil: clients wait
	reserve *os.File       // nil: not to be had, or in use
}

// Accept implements net.Listener.
func (s *retryListener) Accept() (net.Conn, error) {
	since := time.Now()
	for pause := acceptPause; ; pause = min(2*pause, acceptPauseMax) {
		c, err := s.Listener.Accept()
		if err == nil || !passes(err) {
			return c, err
		}
		now := time.Now()
		if pause == acceptPause {
			since = now
		} else if now.Sub(since) >= acceptPatience && exhausted(err) {
			if c := s.byReserve(); c != nil {
				return c, nil
			}
		}
		if s.failed.IsZero() || now.Sub(s.failed) > acceptSpell {
			slog.Warn("no connection can be accepted, it is tried again", "address", s.Addr().String(), "error", err)
		}
		s.failed = now
		select {
		case <-time.After(pause):
		case <-s.closed:
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (s *retryListener) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Listener.Close()
}

// passes reports whether the next Accept may succeed. What the kernel says of the listener itself
// stays so.
func passes(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errors.Is(err, net.ErrClosed) {
		return false
	}
	return errno != syscall.EBADF && errno != syscall.EINVAL && errno != syscall.ENOTSOCK
}
