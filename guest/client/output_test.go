package client

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/session"
)

// written is an output that has ended; it may be read again from what was confirmed on.
type written struct {
	text []byte

	mu          sync.Mutex
	base        uint64
	next, limit uint64
	ended       bool
}

func (w *written) Want(want session.Want) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit, w.base = want.Limit, max(w.base, want.Have)
	if want.Again {
		w.next, w.ended = max(want.From, w.base), false
	}
}

func (w *written) Next(p []byte) (session.Piece, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limit == 0 || w.ended {
		return session.Piece{}, false
	}
	piece := session.Piece{At: w.next, Len: copy(p[:min(uint64(len(p)), max(w.limit, w.next)-w.next)], w.text[w.next:])}
	w.next += uint64(piece.Len)
	piece.End = w.next == uint64(len(w.text))
	w.ended = piece.End
	return piece, piece.Len > 0 || piece.End
}

// lanes gives the fake's guest streams, by the id of their process.
type lanes struct {
	mu   sync.Mutex
	byID map[string]*written
}

func (l *lanes) open(name []byte) session.Source {
	var r agentv1.ReadRequest
	l.mu.Lock()
	defer l.mu.Unlock()
	if proto.Unmarshal(name, &r) != nil || r.Stream != agentv1.Stream_STREAM_STDOUT || l.byID[r.Id] == nil {
		return nil
	}
	return l.byID[r.Id]
}

// newFakeWith is a guest that has lanes.
func newFakeWith(t *testing.T, l *lanes) *fake {
	t.Helper()
	f := &fake{block: make(chan struct{}), open: l.open}
	f.reboot(t)
	return f
}

func read(t *testing.T, a *Agent, id string, at uint64) (*agentv1.ReadResponse, error) {
	t.Helper()
	return a.Read(t.Context(), &agentv1.ReadRequest{Id: id, Stream: agentv1.Stream_STREAM_STDOUT, Offset: at,
		WaitMs: 60_000})
}

// Output that comes in lanes arrives once and in order, whatever becomes of the
// sessions; what was taken and not confirmed comes again.
func TestOutputSurvivesSessions(t *testing.T) {
	text := make([]byte, 3<<20)
	for i := range text {
		text[i] = byte(i * i >> 9)
	}
	f := newFakeWith(t, &lanes{byID: map[string]*written{"p": {text: text}}})
	a := f.connect(t)
	if !a.lanes {
		t.Fatal("the guest has no lanes")
	}
	var got []byte
	for round := 0; ; round++ {
		r, err := read(t, a, "p", uint64(len(got)))
		if err != nil || r.Offset != uint64(len(got)) {
			t.Fatalf("at %d: %d bytes at %d: %v", len(got), len(r.GetData()), r.GetOffset(), err)
		}
		if len(r.Data) > 1000 && round%3 == 0 { // a reader that is cut short
			r.Data, r.Eof = r.Data[:1000], false
		}
		got = append(got, r.Data...)
		if r.Eof {
			break
		}
		if round%4 == 1 && round < 20 {
			f.reboot(t)
		}
	}
	if !bytes.Equal(got, text) {
		t.Errorf("%d bytes of %d, or others", len(got), len(text))
	}
}

// A stream that was not there may come: that it was missing is not remembered.
func TestMissingOutputIsAskedForAgain(t *testing.T) {
	l := &lanes{byID: map[string]*written{}}
	a := newFakeWith(t, l).connect(t)
	if _, err := read(t, a, "late", 0); !errdefs.IsNotFound(err) {
		t.Fatalf("a stream that is not there: %v", err)
	}
	l.mu.Lock()
	l.byID["late"] = &written{text: []byte("here")}
	l.mu.Unlock()
	if r, err := read(t, a, "late", 0); err != nil || string(r.Data) != "here" {
		t.Fatalf("%q, %v", r.GetData(), err)
	}
}

func (f *fake) Remove(ctx context.Context, r *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	switch r.Id {
	case "runs":
		return nil, errgrpc.ToGRPC(fmt.Errorf("it runs: %w", errdefs.ErrFailedPrecondition))
	case "gone":
		return nil, errgrpc.ToGRPC(fmt.Errorf("no process: %w", errdefs.ErrNotFound))
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &agentv1.RemoveResponse{}, nil
}

// The lanes of a process that is removed go, whatever becomes of the answer: each holds
// as much as a megabyte.
func TestRemoveClosesLanes(t *testing.T) {
	l := &lanes{byID: map[string]*written{}}
	ids := map[string]int{"runs": 1, "gone": 0, "slow": 0, "done": 0}
	for id := range ids {
		l.byID[id] = &written{text: []byte(id)}
	}
	a := newFakeWith(t, l).connect(t)
	for id, want := range ids {
		if r, err := read(t, a, id, 0); err != nil || string(r.Data) != id {
			t.Fatalf("%q, %v", r.GetData(), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if id == "slow" {
			cancel()
		}
		_, _ = a.Remove(ctx, &agentv1.RemoveRequest{Id: id})
		cancel()
		p, err := a.session()
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		p.mu.Lock()
		for s := range p.lanes {
			if s.id == id {
				left++
			}
		}
		p.mu.Unlock()
		if left != want {
			t.Errorf("%s: %d lanes are left, want %d", id, left, want)
		}
	}
}
