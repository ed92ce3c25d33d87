package link

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/internal/fdtest"
)

// Clients of a process without descriptors are turned away one after another; once there are
// descriptors again they are served.
func TestRefusing(t *testing.T) {
	inner, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	says := func(word string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = io.WriteString(c, word)
			_ = c.Close()
		}
	}
	l := Refusing(inner, says("none left"))
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			says("served")(c)
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	heard := func(c net.Conn, want string) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if got, err := io.ReadAll(c); err != nil || string(got) != want {
			t.Errorf("heard %q, %v, want %q", got, err, want)
		}
		_ = c.Close()
	}
	heard(dial(), "served")
	restore := fdtest.Exhaust(t, 1) // the client's
	for range 2 {                   // the reserve is there again
		heard(dial(), "none left")
	}
	restore()
	heard(dial(), "served")
}
