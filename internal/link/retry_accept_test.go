package link

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// ailing is a listener whose Accept fails so often before each connection.
type ailing struct {
	net.Listener
	err   error
	times int
	calls int
}

func (a *ailing) Accept() (net.Conn, error) {
	if a.calls++; a.calls%(a.times+1) != 0 {
		return nil, a.err
	}
	here, _ := net.Pipe()
	return here, nil
}

func (*ailing) Addr() net.Addr { return &net.TCPAddr{} }
func (*ailing) Close() error   { return nil }

// fails is what net says of an accept4 that the kernel has refused.
func fails(errno syscall.Errno) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", errno)}
}

// logged is what the program logs until the test ends.
func logged(t *testing.T) *bytes.Buffer {
	var out bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(func() { slog.SetDefault(was) })
	return &out
}

// Whatever Accept fails with that may pass, at the first connection or a later one: they come in the
// end, the pauses grow to a second, and the log has one line.
func TestSteady(t *testing.T) {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.ECONNRESET,
		syscall.EPROTO,
		syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPERM, syscall.EINTR,
	} {
		synctest.Test(t, func(t *testing.T) {
			out, begun := logged(t), time.Now()
			inner := &ailing{err: fails(errno), times: 12}
			l := RetryAccept(inner)
			for n := range 3 {
				if c, err := l.Accept(); err != nil || c == nil {
					t.Fatalf("%v: connection %d: %v", errno, n, err)
				}
			}
			// 5, 10, .. 640 ms, and four times a second, before each of the three
			if took := time.Since(begun); took != 3*(255*acceptPause+4*time.Second) {
				t.Errorf("%v: after %v", errno, took)
			}
			if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), errno.Error()) {
				t.Errorf("%v: %d lines: %s", errno, n, out)
			}
			time.Sleep(2 * acceptSpell)
			if _, err := l.Accept(); err != nil || strings.Count(out.String(), "\n") != 2 {
				t.Errorf("%v: the next spell: %v, %s", errno, err, out)
			}
		})
	}
}

// A listener that is none any more ends Accept.
func TestSteadyEnds(t *testing.T) {
	for _, err := range []error{fails(syscall.EBADF), fails(syscall.EINVAL), fails(syscall.ENOTSOCK),
		&net.OpError{Op: "accept", Err: net.ErrClosed}, errors.New("else")} {
		l := RetryAccept(&ailing{err: err, times: 1})
		if _, got := l.Accept(); !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// Close ends the pause at once, and may be repeated.
func TestSteadyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged(t)
		l, begun := RetryAccept(&ailing{err: fails(syscall.EMFILE), times: 1 << 30}), time.Now()
		go func() {
			time.Sleep(time.Hour + time.Millisecond)
			_ = l.Close()
			_ = l.Close()
		}()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || time.Since(begun) != time.Hour+time.Millisecond {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}
