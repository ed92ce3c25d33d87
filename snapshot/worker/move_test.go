package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/stream"
)

// both is a VM that stands still when it is told to, and its destination.
type both struct {
	state    *os.File
	complete int
	launched int
	digest   string
	resume   string
	fail     error // of Load
}

func (b *both) Prepare(context.Context) error { return nil }

func (b *both) Pause(context.Context) error { return nil }

func (b *both) Save(context.Context) (json.RawMessage, error) {
	_, err := b.state.WriteAt([]byte("state"), 0)
	return json.RawMessage(`{"a":1}`), err
}

func (b *both) Complete(context.Context) error { b.complete++; return nil }

func (b *both) Launched(context.Context) error { b.launched++; return nil }

func (b *both) Load(_ context.Context, digest string, resume json.RawMessage, written *stream.Written) error {
	b.digest, b.resume = digest, string(resume)
	return b.fail
}

// A VM goes from one confined process to the other, by a connection that its end was handed. What the destination
// cannot load is the source's error too. A peer with another certificate is told from a source that fails.
func TestMove(t *testing.T) {
	for name, c := range map[string]struct {
		fail    error
		another bool
		want    func(error) bool
	}{
		"goes":      {},
		"unfit":     {fail: fmt.Errorf("load: %w", errdefs.ErrFailedPrecondition), want: errdefs.IsFailedPrecondition},
		"a strange": {another: true, want: func(err error) bool { return errors.Is(err, ErrStranger) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := &both{fail: c.fail}
			one, two := newEnd(t), newEnd(t)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ram, state, to, toState := file(t, noise(3<<20)), file(t, nil), file(t, nil), file(t, nil)
			if err := ram.Truncate(ramSize); err != nil {
				t.Fatal(err)
			}
			b.state = state.File
			ref := snapshot.Ref{VM: "ns/vm", UID: "u", Operation: "op", Attempt: 1, Generation: 1}
			received := make(chan error, 1)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					received <- err
					return
				}
				f, err := conn.(*net.TCPConn).File()
				conn.Close()
				if err != nil {
					received <- err
					return
				}
				defer f.Close()
				peer := one.Certificate
				if c.another {
					peer = two.Certificate
				}
				received <- client().Receive(t.Context(), ReceiveJob{
					Arrival: b, Conn: Open(f), Ends: stream.Ends{Own: two, Peer: peer, Channel: "c"}, Ref: ref,
					Spaces: []SizedSpace{{Name: "ram0", Size: ramSize, File: to}}, State: toState,
				}, nil)
			}()
			sent, err := client().Send(t.Context(), SendJob{
				Live: b, Budget: 50 * time.Millisecond, Address: l.Addr().String(),
				Ends: stream.Ends{Own: one, Peer: two.Certificate, Channel: "c"},
				Ref:  ref, Spaces: []Space{{Name: "ram0", File: ram}}, State: state,
			}, nil)
			rerr := <-received
			if c.want != nil {
				if !c.want(rerr) || err == nil || !c.another && !c.want(err) {
					t.Errorf("source %v, destination %v", err, rerr)
				}
				return
			}
			if err != nil || rerr != nil {
				t.Fatal(err, rerr)
			}
			was, _ := os.ReadFile(ram.Name())
			is, _ := os.ReadFile(to.Name())
			saved, _ := os.ReadFile(toState.Name())
			if !bytes.Equal(was, is) || string(saved) != "state" || b.digest != sent.Digest || b.resume != `{"a":1}` ||
				b.complete != 1 {
				t.Errorf("arrived %+v of %+v, state %q, RAM equal %v", b, sent, saved, bytes.Equal(was, is))
			}
		})
	}
}

// A source that says of itself that it is not the source is one, and pages of it have come: this is no error of the
// handshake.
func TestSourceCallsItselfAStranger(t *testing.T) {
	b, one, two := &both{}, newEnd(t), newEnd(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ref := stream.Ref{VM: "ns/vm", UID: "u", Operation: "op", Attempt: 1, Generation: 1}
	source := func() error {
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer raw.Close()
		conn, err := (stream.Ends{Own: one, Peer: two.Certificate, Channel: "c"}).Client(t.Context(), raw)
		if err != nil {
			return err
		}
		out := stream.NewWriter(conn, 0)
		hello := stream.Hello{Version: version.Pages, Ref: ref, Spaces: []stream.Area{{Name: "ram0", Size: ramSize}}}
		if err := out.JSON(t.Context(), stream.KindHello, hello); err != nil {
			return err
		}
		if _, err := stream.NewReader(conn, 1).Accept(); err != nil {
			return err
		}
		return out.Fail(t.Context(), errdefs.ErrUnauthenticated)
	}
	said := make(chan error, 1)
	go func() { said <- source() }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := conn.(*net.TCPConn).File()
	conn.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = client().Receive(t.Context(), ReceiveJob{
		Arrival: b, Conn: Open(f), Ends: stream.Ends{Own: two, Peer: one.Certificate, Channel: "c"}, Ref: snapshot.Ref(ref),
		Spaces: []SizedSpace{{Name: "ram0", Size: ramSize, File: file(t, nil)}}, State: file(t, nil),
	}, nil)
	if err == nil || errdefs.IsUnauthorized(err) || errors.Is(err, ErrStranger) || b.complete != 1 {
		t.Errorf("the destination says %v after %d orders", err, b.complete)
	}
	if err := <-said; err != nil {
		t.Error(err)
	}
}

func newEnd(t *testing.T) stream.Identity {
	t.Helper()
	i, err := stream.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// The VM stands still for what comes after READY: the answer does not wait for the worker's end. One that does not
// come to its end is killed with the operation.
func TestSentBeforeTheWorkerEnds(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "ends")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	const hangs = `exec 9>"$0"; read -r job; echo '{"ended":"stream:1"}'; ` +
		`echo '{"sent":{"digest":"stream:1"}}'; exec sleep 1000`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &Client{Command: []string{"/bin/sh", "-c", hangs, fifo}}
	ended := ""
	sent, err := c.Send(ctx, SendJob{State: file(t, nil), Ended: func(digest string) { ended = digest }}, nil)
	if err != nil || sent.Digest != "stream:1" || ended != sent.Digest {
		t.Fatal(sent, err)
	}
	cancel()
	if _, err := held.Read(make([]byte, 1)); err != io.EOF { // the last one that had it open is gone
		t.Error(err)
	}
}
