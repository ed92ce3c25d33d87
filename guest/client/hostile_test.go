package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/encoding/protowire"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/session"
	"godwit.dev/godwit/internal/turn"
)

// hostile is a guest at the end of a real channel and session; serve has each of its
// connections.
func hostile(t *testing.T, serve func(c net.Conn)) *Agent {
	t.Helper()
	l := session.NewListener()
	path := filepath.Join(t.TempDir(), "agent.sock")
	sock, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close(); l.Close() })
	go func() {
		for {
			c, err := sock.Accept()
			if err != nil {
				return
			}
			go func() { _ = l.Serve(c) }()
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	a := &Agent{opts: Options{Dial: dialUnix}, path: path, opening: turn.New()}
	a.opts.Log = slog.New(slog.DiscardHandler)
	a.life, a.stop = context.WithCancel(context.Background())
	t.Cleanup(func() { a.Close() })
	return a
}

// header of a ttrpc message.
func header(length, stream uint32, kind byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, length)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, kind, 0)
}

// answer is a whole response with that payload of the call's own type.
func answer(stream uint32, payload []byte) []byte {
	b := protowire.AppendTag(nil, 2, protowire.BytesType) // of ttrpc's Response
	b = protowire.AppendBytes(b, payload)
	return append(header(uint32(len(b)), stream, typeResponse), b...)
}

// request reads one and answers its stream.
func request(c net.Conn) (uint32, error) {
	b := make([]byte, messageHeader)
	if _, err := io.ReadFull(c, b); err != nil {
		return 0, err
	}
	_, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(b)))
	return binary.BigEndian.Uint32(b[4:]), err
}

// ask makes one call and answers its error; it fails the test if that takes longer than
// the caller gave it.
func ask(t *testing.T, bound time.Duration, call func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("a call outlives its context")
	}
	return nil
}

// forever writes b until the connection ends.
func forever(c net.Conn, b []byte) {
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// An agent that answers nonsense, too much or too late fails the call by its class. It neither
// blocks the caller beyond its deadline nor takes the host's memory.
func TestHostileAgent(t *testing.T) {
	many := make([]byte, 4<<20-64) // empty messages of two bytes, which decode to many times that
	for i := 0; i < len(many); i += 2 {
		many[i] = 1<<3 | byte(protowire.BytesType)
	}
	for name, tt := range map[string]struct {
		serve func(c net.Conn)
		late  bool
	}{
		"garbage": {func(c net.Conn) { forever(c, []byte("GDWT\xff\xff\xff\xff nonsense")) }, false},
		"zeros":   {func(c net.Conn) { forever(c, make([]byte, 4096)) }, false},
		"huge length": {func(c net.Conn) {
			_, _ = request(c)
			_, _ = c.Write(header(1<<32-1, 1, typeResponse))
			forever(c, many)
		}, false},
		"huge count": {func(c net.Conn) { s, _ := request(c); _, _ = c.Write(answer(s, many)) }, false},
		"other call": {func(c net.Conn) { s, _ := request(c); forever(c, answer(s+2, nil)) }, false},
		"answered twice": {func(c net.Conn) {
			s, _ := request(c)
			_, _ = c.Write(append(header(0, s+2, typeResponse), answer(s, nil)...))
		}, false},
		"a request":   {func(c net.Conn) { s, _ := request(c); _, _ = c.Write(header(0, s, 1)) }, false},
		"stream data": {func(c net.Conn) { s, _ := request(c); forever(c, header(0, s, 3)) }, false},
		"not a protobuf": {func(c net.Conn) {
			for s, err := request(c); err == nil; s, err = request(c) {
				_, _ = c.Write(answer(s, []byte{0xff, 0xff, 0xff}))
			}
		}, false},
		"no answer":      {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, true},
		"nobody reads":   {func(net.Conn) {}, true},
		"half an answer": {func(c net.Conn) { s, _ := request(c); _, _ = c.Write(answer(s, make([]byte, 100))[:50]) }, true},
		"closes at once": {func(c net.Conn) { c.Close() }, true},
		"closes midway": {func(c net.Conn) {
			s, _ := request(c)
			_, _ = c.Write(answer(s, make([]byte, 100))[:50])
			c.Close()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := hostile(t, tt.serve)
			before := heap()
			bound := 30 * time.Second
			if tt.late {
				bound = 100 * time.Millisecond
			}
			for range 3 {
				err := ask(t, bound, func(ctx context.Context) error {
					_, err := a.Processes(ctx, &agentv1.ProcessesRequest{})
					return err
				})
				if err == nil || isLate(err) != tt.late || !tt.late && name != "not a protobuf" && !errdefs.IsDataLoss(err) {
					t.Errorf("the call ended with %v", err)
				}
			}
			if grown := heap() - before; grown > 32<<20 {
				t.Errorf("the host's memory grew by %d MiB", grown>>20)
			}
		})
	}
}

func isLate(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// Output may be longer than other answers; what is in order passes, one answer for each
// call, in any order.
func TestGuardPassesWhatIsInOrder(t *testing.T) {
	const calls = 40
	a := hostile(t, func(c net.Conn) {
		var open []uint32
		for range calls {
			s, err := request(c)
			if err != nil {
				return
			}
			open = append(open, s)
		}
		data := protowire.AppendTag(nil, 1, protowire.BytesType)
		data = protowire.AppendBytes(data, make([]byte, 1<<20))
		for i := len(open) - 1; i >= 0; i-- {
			if _, err := c.Write(answer(open[i], data)); err != nil {
				return
			}
		}
	})
	failed := make(chan error, calls)
	for range calls {
		go func() {
			r, err := a.Read(t.Context(), &agentv1.ReadRequest{})
			if err == nil && len(r.Data) != 1<<20 {
				err = errors.New("the data is not whole")
			}
			failed <- err
		}()
	}
	for range calls {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// A guest of an earlier build lists each exec that was not deleted: the host takes all that one message can hold.
func TestLongListOfProcesses(t *testing.T) {
	const count = 20_000
	var processes, others []byte
	for i := range count {
		one := protowire.AppendTag(nil, 1, protowire.BytesType)
		one = protowire.AppendString(one, fmt.Sprintf("%080d", i))
		one = protowire.AppendTag(one, 3, protowire.VarintType)
		one = protowire.AppendVarint(one, 1) // exited
		processes = protowire.AppendBytes(protowire.AppendTag(processes, 3, protowire.BytesType), one)
		others = protowire.AppendBytes(protowire.AppendTag(others, 1, protowire.BytesType), one)
	}
	a := hostile(t, func(c net.Conn) {
		for _, list := range [][]byte{processes, others} {
			s, err := request(c)
			if err != nil {
				return
			}
			if _, err := c.Write(answer(s, list)); err != nil {
				return
			}
		}
	})
	r, err := a.Restored(t.Context(), &agentv1.RestoredRequest{})
	if err != nil || len(r.GetProcesses()) != count || r.GetProcesses()[7].GetId() != fmt.Sprintf("%080d", 7) {
		t.Errorf("Restored = %d processes, %v", len(r.GetProcesses()), err)
	}
	p, err := a.Processes(t.Context(), &agentv1.ProcessesRequest{})
	if err != nil || len(p.GetProcesses()) != count || !p.GetProcesses()[7].GetExited() {
		t.Errorf("Processes = %d processes, %v", len(p.GetProcesses()), err)
	}
}

// A guest that ends every session is asked ever more slowly.
func TestRefusedSessionsDoNotSpin(t *testing.T) {
	var sessions atomic.Int64
	a := hostile(t, func(c net.Conn) { sessions.Add(1); c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := a.Info(ctx, &agentv1.InfoRequest{}); !isLate(err) {
		t.Errorf("Info = %v", err)
	}
	if n := sessions.Load(); n > 12 {
		t.Errorf("%d sessions in two seconds", n)
	}
}

// The guard takes bytes as they come, in pieces of any size, and never looks at what a
// message holds.
func FuzzGuard(f *testing.F) {
	f.Add(answer(1, []byte("x")), uint8(1))
	f.Add(append(answer(1, nil), header(1<<31, 3, typeResponse)...), uint8(3))
	f.Add(header(0, 0, 0), uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		check := func(size int) (passed int, failed bool) {
			in, guest := net.Pipe()
			defer in.Close()
			g := newGuard(in)
			g.waiting[1], g.waiting[3] = maxAnswer, maxOutput
			go func() {
				for at := 0; at < len(b); at += size {
					if _, err := guest.Write(b[at:min(at+size, len(b))]); err != nil {
						return
					}
				}
				guest.Close()
			}()
			buf := make([]byte, 64)
			for {
				n, err := g.Read(buf)
				passed += n
				if err != nil {
					return passed, errors.Is(err, errNonsense)
				}
			}
		}
		whole, failed := check(len(b) + 1)
		pieces, again := check(int(size) + 1)
		if failed != again || !failed && whole != pieces {
			t.Fatalf("%d bytes (nonsense: %v), in pieces %d (%v)", whole, failed, pieces, again)
		}
	})
}

// FuzzAnswers feeds the bytes of a guest to the client, as answers of every kind.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte("\x08\x01"), uint8(0))
	f.Add([]byte("\x0a\x02\x10\xff"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		host, guest := net.Pipe()
		defer guest.Close()
		go func() {
			s, err := request(guest)
			if err != nil {
				return
			}
			_, _ = guest.Write(answer(s, b))
			guest.Close()
		}()
		dial := func(context.Context, string) (net.Conn, error) { return nil, io.EOF }
		a := &Agent{opts: Options{Log: slog.New(slog.DiscardHandler), Dial: dial}, opening: turn.New()}
		a.life, a.stop = context.WithCancel(t.Context())
		conn := session.Dial(a.dial)
		defer conn.Close()
		g := newGuard(host)
		a.current = &peer{conn: conn, guard: g, client: ttrpc.NewClient(g)}
		defer a.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		calls := []func() error{
			func() error { _, err := a.Info(ctx, &agentv1.InfoRequest{}); return err },
			func() error { _, err := a.WaitExit(ctx, "x"); return err },
			func() error { _, err := a.Processes(ctx, &agentv1.ProcessesRequest{}); return err },
			func() error { _, err := a.Stats(ctx, &agentv1.StatsRequest{}); return err },
			func() error { _, err := a.Restored(ctx, &agentv1.RestoredRequest{}); return err },
			func() error { return a.NewStreams("x", Offsets{}).CopyStdout(ctx, io.Discard) },
			func() error { _, err := a.Write(ctx, &agentv1.WriteRequest{}); return err },
		}
		_ = calls[int(kind)%len(calls)]() // that it ends is what counts
	})
}
