package channel

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/version"
)

// host is a listener and the socket of a shim.
func host(t *testing.T) (l *Listener, shim *net.UnixListener, names chan string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "pages.sock")
	names = make(chan string, 1)
	shim, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = Listen(inner, func(name string) (string, error) { names <- name; return socket, nil })
	t.Cleanup(func() { l.Close(); shim.Close() })
	return l, shim, names
}

func hello(t *testing.T, c net.Conn, name, proto string) {
	t.Helper()
	go func() {
		_ = tls.Client(c, &tls.Config{ServerName: name, NextProtos: []string{proto}, InsecureSkipVerify: true}).
			HandshakeContext(context.Background())
	}()
}

func dial(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A stream of pages goes to its shim, with all its bytes; another connection comes out of
// Accept, with all of its own.
func TestRoutes(t *testing.T) {
	l, shim, names := host(t)
	hello(t, dial(t, l), "0123-abcd", version.PagesALPN)
	to, err := shim.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if name := <-names; name != "0123-abcd" {
		t.Errorf("channel %q", name)
	}
	data, oob := make([]byte, 64), make([]byte, 64)
	n, oobn, _, _, err := to.ReadMsgUnix(data, oob)
	if err != nil || string(data[:n]) != version.PagesALPN {
		t.Fatalf("%q, %v", data[:n], err)
	}
	msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%v, %v", fds, err)
	}
	f := os.NewFile(uintptr(fds[0]), "conn")
	passed, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	if name, pages, err := Peek(t.Context(), passed); name != "0123-abcd" || !pages || err != nil {
		t.Errorf("what was passed begins with %q, %v, %v", name, pages, err)
	}

	other := dial(t, l)
	hello(t, other, "n1", "h2")
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if name, pages, err := Peek(t.Context(), c); name != "n1" || pages || err != nil {
		t.Errorf("what Accept has begins with %q, %v, %v", name, pages, err)
	}
}

// A ClientHello in pieces is waited for; what is no TLS is handed on at once, and what
// ends midway is closed.
func TestPieces(t *testing.T) {
	l, _, _ := host(t)
	plain := dial(t, l)
	if _, err := plain.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()

	near, far := net.Pipe()
	hello(t, near, "n2", "h2")
	message := make([]byte, 4096)
	n, err := far.Read(message)
	if err != nil {
		t.Fatal(err)
	}
	far.Close()
	pieces := dial(t, l)
	for _, part := range [][]byte{message[:3], message[3:40], message[40:n]} {
		if _, err := pieces.Write(part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * peekPause)
	}
	if c, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	if name, _, err := Peek(t.Context(), c); name != "n2" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	c.Close()

	cut := dial(t, l)
	if _, err := cut.Write(message[:20]); err != nil {
		t.Fatal(err)
	}
	if err := cut.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(cut); err != nil && !isReset(err) {
		t.Errorf("a hello that ends midway: %v", err)
	}
}

func isReset(err error) bool {
	return errors.As(err, new(*net.OpError))
}

// Close ends Accept, and does not wait for a connection that says nothing.
func TestClose(t *testing.T) {
	l, _, _ := host(t)
	dial(t, l)
	done := make(chan error, 1)
	go func() { _, err := l.Accept(); done <- err }()
	begun := time.Now()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("Accept answers after Close")
	}
	if took := time.Since(begun); took > helloBound/2 {
		t.Errorf("Close took %v", took)
	}
}
