package channel

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/version"
)

// Who knows a VM's name and not the token of its channel reaches no shim. A shim of the release before, which waits at
// a socket without a token, is reached as before.
func TestToken(t *testing.T) {
	dir, err := os.MkdirTemp("", "ch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := &config.Config{RunDir: dir}
	ours := cfg.PagesChannel("ns", "vm", strings.Repeat("0a", 16))
	guess := cfg.PagesChannel("ns", "vm", strings.Repeat("0b", 16))
	socket, err := cfg.PagesSocket(ours)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(filepath.Dir(socket), "pages.sock")
	for name, path := range map[string]string{"this release": socket, "the release before": old} {
		shim, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := Listen(inner, cfg.LivePagesSocket)
		if path == socket {
			stranger := dial(t, l)
			hello(t, stranger, guess, version.PagesALPN)
			if err := stranger.SetReadDeadline(time.Now().Add(helloBound)); err != nil {
				t.Fatal(err)
			}
			if _, err := stranger.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("a connection with another token was not closed: %v", err)
			}
		}
		if err := shim.SetDeadline(time.Now().Add(helloBound)); err != nil {
			t.Fatal(err)
		}
		hello(t, dial(t, l), ours, version.PagesALPN)
		c, err := shim.Accept()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Close()
		l.Close()
		shim.Close()
	}
}
