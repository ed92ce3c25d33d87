package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// forwards is a running pod, whose ports are forwarded. dial makes a connection to one of them: the port of its
// listener stands for every port of localhost.
type forwards struct {
	*world
	listener net.Listener
	all      chan net.Listener
}

func forwardingPod(t *testing.T) *forwards {
	t.Helper()
	f := &forwards{world: newWorld(t), all: make(chan net.Listener, 8)}
	f.agent.ports.localhost = func(string) ([]net.Listener, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			f.all <- l
		}
		return []net.Listener{l}, err
	}
	f.podNotes = map[string]string{"godwit.dev/vm": "web"}
	f.runningPod("web")
	f.listener = <-f.all
	return f
}

func (f *forwards) port() uint32 { return uint32(f.listener.Addr().(*net.TCPAddr).Port) }

func (f *forwards) dial() *net.TCPConn {
	f.t.Helper()
	c, err := net.Dial("tcp", f.listener.Addr().String())
	f.must("dial", err)
	f.t.Cleanup(func() { _ = c.Close() })
	f.must("bound", c.SetDeadline(time.Now().Add(time.Minute))) // of a test that hangs
	return c.(*net.TCPConn)
}

// echoes sends a text there and back.
func (f *forwards) echoes(text []byte) {
	f.t.Helper()
	c := f.dial()
	go func() {
		_, _ = c.Write(text)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, text) {
		f.t.Errorf("%d of %d bytes came back: %v", len(got), len(text), err)
	}
}

// refused makes a connection that is reset.
func (f *forwards) refused(what string) {
	f.t.Helper()
	c, err := net.Dial("tcp", f.listener.Addr().String())
	if err == nil {
		defer c.Close()
		f.must("bound", c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.ReadAll(c)
	}
	if !errors.Is(err, unix.ECONNRESET) {
		f.t.Errorf("%s: %v", what, err)
	}
}

func (f *forwards) guestHasNone() {
	f.t.Helper()
	if !eventually(func() bool { n, _ := f.agent.ports.left(); return n == 0 }) {
		n, _ := f.agent.ports.left()
		f.t.Errorf("the guest has %d connections", n)
	}
}

func echo(c *net.TCPConn) {
	_, _ = io.Copy(c, c)
	_ = c.CloseWrite()
}

// TestForward: what is sent to localhost of the pod's namespace comes to the guest's program and back, with the end of
// each direction. A port that nothing listens on is reset.
func TestForward(t *testing.T) {
	f := forwardingPod(t)
	f.refused("a port that nothing listens on")
	f.program(f.port(), echo)
	f.echoes([]byte("short"))
	f.echoes(bytes.Repeat([]byte("0123456789abcdef"), 64<<10))
	f.guestHasNone()
}

// TestForwardOfAnOldGuest: an agent that cannot connect resets what comes, and the pod runs on.
func TestForwardOfAnOldGuest(t *testing.T) {
	f := forwardingPod(t)
	f.at("connect", func() error { return errdefs.ErrNotImplemented })
	for range 2 {
		f.refused("a guest that cannot connect")
	}
}

// TestForwardWithoutListener: where the kernel gives no listener, the pod runs.
func TestForwardWithoutListener(t *testing.T) {
	w := newWorld(t)
	asked := make(chan bool, 8)
	w.agent.ports.localhost = func(string) ([]net.Listener, error) {
		asked <- true
		return nil, errdefs.ErrPermissionDenied
	}
	w.runningPod("web")
	<-asked
	w.must("create", w.createMember("other", "alpine"))
}

// TestForwardIsBounded: a guest that accepts and hangs costs so many connections at most. Those whose client has gone
// end, and what waited goes on.
func TestForwardIsBounded(t *testing.T) {
	was := abandonedAfter
	abandonedAfter = 200 * time.Millisecond
	t.Cleanup(func() { abandonedAfter = was })
	f := forwardingPod(t)
	hang := make(chan bool)
	defer close(hang)
	f.program(f.port(), func(*net.TCPConn) { <-hang })
	var all []*net.TCPConn
	for i := range 2 * maxForwards {
		c := f.dial()
		if i%2 == 0 {
			go func() { _, _ = c.Write(make([]byte, 8<<20)) }() // more than all buffers hold
			f.must("reset at its end", c.SetLinger(0))
		}
		all = append(all, c)
	}
	if !eventually(func() bool { n, _ := f.agent.ports.left(); return n == maxForwards }) {
		n, _ := f.agent.ports.left()
		t.Fatalf("the guest has %d connections, not %d", n, maxForwards)
	}
	for _, c := range all {
		_ = c.Close()
	}
	f.guestHasNone()
	if _, most := f.agent.ports.left(); most > maxForwards {
		t.Errorf("the guest had %d connections", most)
	}
	f.program(f.port(), echo)
	f.echoes([]byte("after"))
}

// TestForwardLives: a connection that rests is not taken for one whose client has gone.
func TestForwardLives(t *testing.T) {
	was := abandonedAfter
	abandonedAfter = 10 * time.Millisecond
	t.Cleanup(func() { abandonedAfter = was })
	f := forwardingPod(t)
	f.program(f.port(), echo)
	c := f.dial()
	for range 3 {
		_, err := fmt.Fprint(c, "x")
		f.must("write", err)
		_, err = io.ReadFull(c, make([]byte, 1))
		f.must("read", err)
		time.Sleep(5 * abandonedAfter) // it rests
	}
}

// TestForwardStopsForAnOperation: connections end when an operation takes the VM, and it takes it at once. When the VM
// goes on, new ones are made.
func TestForwardStopsForAnOperation(t *testing.T) {
	f := forwardingPod(t)
	f.program(f.port(), echo)
	c := f.dial()
	_, err := c.Write([]byte("x"))
	f.must("write", err)
	_, err = io.ReadFull(c, make([]byte, 1))
	f.must("read", err)
	_, err = f.capture()
	f.must("capture", err)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection while an operation holds the VM: %v", err)
	}
	if _, err := net.Dial("tcp", f.listener.Addr().String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a new connection while an operation holds the VM: %v", err)
	}
	_, err = f.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: f.ref()})
	f.must("abort", err)
	f.listener = <-f.all
	f.program(f.port(), echo)
	f.echoes([]byte("after"))
}
