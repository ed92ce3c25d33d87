package channel

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// failing is a listener whose first Accept fails.
type failing struct {
	net.Listener
	errno syscall.Errno
	asked atomic.Bool
}

func (f *failing) Accept() (net.Conn, error) {
	if f.asked.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", f.errno)}
	}
	return f.Listener.Accept()
}

// An Accept that fails, and may not the next time, does not end the port.
func TestAcceptFails(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPROTO} {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := Listen(&failing{Listener: inner, errno: errno}, nil)
		hello(t, dial(t, l), "n1", "h2")
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("%v: %v", errno, err)
		}
		c.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// looked is a connection that tells of each look at it.
type looked struct {
	*net.TCPConn
	looks chan time.Time
}

func (l *looked) SyscallConn() (syscall.RawConn, error) {
	raw, err := l.TCPConn.SyscallConn()
	return &lookedRaw{raw, l.looks}, err
}

type lookedRaw struct {
	syscall.RawConn
	looks chan time.Time
}

func (l *lookedRaw) Read(f func(uintptr) bool) error {
	select {
	case l.looks <- time.Now():
	default:
	}
	return l.RawConn.Read(f)
}

// Who sends a byte of its first message and then none is looked at less and less often.
func TestDripCostsNothing(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := inner.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := client.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	peeked := make(chan struct{})
	looks := make(chan time.Time, 9)
	go func() {
		defer close(peeked)
		_, _, _ = Peek(ctx, &looked{server.(*net.TCPConn), looks})
	}()
	first := <-looks
	last := first
	for range 8 {
		last = <-looks
	}
	cancel()
	<-peeked
	if took := last.Sub(first); took < 255*peekPause { // 1 + 2 + 4 + .. 128 of them
		t.Errorf("looked at nine times in %v", took)
	}
}
