package agentd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// listen has a program listen on localhost, which serves each connection.
func listen(t *testing.T, network, address string, serve func(*net.TCPConn)) (port uint32) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		var kept []net.Conn // a connection that nothing refers to is closed by a garbage collection
		defer func() {
			for _, c := range kept {
				_ = c.Close()
			}
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			kept = append(kept, c)
			go serve(c.(*net.TCPConn))
		}
	}()
	return uint32(l.Addr().(*net.TCPAddr).Port)
}

func agent() *Service {
	s := newService(&container{})
	s.opts.Poke = func() {}
	return s
}

// TestConnect: bytes go through a connection both ways, and so does the end of each. It is in the way of no process.
func TestConnect(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		port := listen(t, network, address, func(c *net.TCPConn) {
			_, _ = io.Copy(c, c)
			_ = c.CloseWrite()
		})
		s, ctx := agent(), t.Context()
		for range 2 { // the answer to the first may be lost
			if _, err := s.Connect(ctx, &agentv1.ConnectRequest{Id: "f", Port: port}); err != nil {
				t.Fatalf("%s: %v", network, err)
			}
		}
		text := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
		var got []byte
		for sent, eof := 0, false; !eof; {
			if sent < len(text) {
				data := text[sent:min(len(text), sent+40000)]
				r, err := s.Write(ctx, &agentv1.WriteRequest{Id: "f", Offset: uint64(sent), Data: data})
				if err != nil {
					t.Fatal(err)
				}
				if sent = int(r.Offset); sent == len(text) {
					_, _ = s.CloseStdin(ctx, &agentv1.CloseStdinRequest{Id: "f", Offset: uint64(sent)})
				}
			}
			r, err := s.Read(ctx, &agentv1.ReadRequest{Id: "f", Stream: agentv1.Stream_STREAM_STDOUT,
				Offset: uint64(len(got)), WaitMs: 10})
			if err != nil {
				t.Fatal(err)
			}
			got, eof = append(got, r.Data...), r.Eof
		}
		if !bytes.Equal(got, text) {
			t.Errorf("%s: %d of %d bytes came back", network, len(got), len(text))
		}
		if _, err := s.Remove(ctx, &agentv1.RemoveRequest{Id: "f"}); err != nil {
			t.Error(err)
		}
		if _, err := s.Remove(ctx, &agentv1.RemoveRequest{Id: "f"}); !errdefs.IsNotFound(err) {
			t.Errorf("remove it again: %v", err)
		}
	}
}

// TestConnectRefusals: each of them names what is wrong, and keeps nothing.
func TestConnectRefusals(t *testing.T) {
	port := listen(t, "tcp4", "127.0.0.1:0", func(*net.TCPConn) {})
	s, ctx := agent(), t.Context()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := uint32(free.Addr().(*net.TCPAddr).Port)
	_ = free.Close()
	connect := func(id string, port uint32) error {
		_, err := s.Connect(ctx, &agentv1.ConnectRequest{Id: id, Port: port})
		return err
	}
	if err := connect("f", closed); !errdefs.IsNotFound(err) {
		t.Errorf("a port that nothing listens on: %v", err)
	}
	for _, port := range []uint32{0, 65536} {
		if err := connect("f", port); !errdefs.IsInvalidArgument(err) {
			t.Errorf("port %d: %v", port, err)
		}
	}
	if err := connect("", port); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the id of a process: %v", err)
	}
	if err := connect("f", port); err != nil {
		t.Fatal(err)
	}
	if err := connect("f", closed); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another port with the same id: %v", err)
	}
	for n := 1; n < maxConnections; n++ {
		s.connections[fmt.Sprint(n)] = s.connections["f"]
	}
	if err := connect("more", port); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one too many: %v", err)
	}
}

// TestConnectionsOfARestore: the host that had the connections is another one. Who waits for bytes is told.
func TestConnectionsOfARestore(t *testing.T) {
	ended := make(chan error, 1)
	port := listen(t, "tcp4", "127.0.0.1:0", func(c *net.TCPConn) {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	})
	s := agent()
	if _, err := s.Connect(t.Context(), &agentv1.ConnectRequest{Id: "f", Port: port}); err != nil {
		t.Fatal(err)
	}
	s.dropConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the program read a byte")
		}
	case <-ctx.Done():
		t.Error("the program waits on")
	}
	if _, err := s.Read(ctx, &agentv1.ReadRequest{Id: "f"}); !errdefs.IsNotFound(err) {
		t.Errorf("read after a restore: %v", err)
	}
}
