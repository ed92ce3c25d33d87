package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/link"
)

// Bounds of what one peer may have under way here, over all its connections. Beyond those of calls
// nothing more is read from it; beyond that of answers it is refused more of them.
const (
	mostConns  = 64       // connections
	mostCalls  = 512      // calls that are not answered yet
	mostAsked  = 8 << 20  // bytes of their requests
	mostUnread = 16 << 20 // bytes of answers that it has not taken yet
	small      = 16 << 10 // bytes of an answer that is never refused: claims go on while lists are sent
	mostLists  = 2        // calls that read many records, at once

	// share of calls and of their bytes that one connection may have: one that hangs leaves its node the rest.
	share = 4
)

// window is what a peer has under way.
type window struct {
	lists chan struct{}

	mu     sync.Mutex
	conns  int
	calls  int
	asked  int
	unread int
	freed  chan struct{} // closed when something ends
}

func newWindow() *window {
	return &window{lists: make(chan struct{}, mostLists), freed: make(chan struct{})}
}

// awaitCall waits until one more call may be read. It is false once the connection is over, and where
// nothing has ended for long: what is not read is not known to be there still.
func (w *window) awaitCall(mine func() (calls, asked int), over <-chan struct{}) bool {
	for {
		w.mu.Lock()
		ok, freed := w.calls < mostCalls && w.asked < mostAsked, w.freed
		w.mu.Unlock()
		if calls, asked := mine(); ok && calls < mostCalls/share && asked < mostAsked/share {
			return true
		}
		select {
		case <-freed:
		case <-over:
			return false
		case <-time.After(link.Gone):
			return false
		}
	}
}

// add counts what begins, and what ends with a negative sign.
func (w *window) add(calls, asked, unread int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls, w.asked, w.unread = w.calls+calls, w.asked+asked, w.unread+unread
	if calls < 0 || asked < 0 {
		close(w.freed)
		w.freed = make(chan struct{})
	}
}

// admitAnswer counts an answer, or refuses it while the peer has too many that it has not taken.
func (w *window) admitAnswer(bytes int, refusable bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if refusable && bytes > small && w.unread > mostUnread {
		return fmt.Errorf("%d bytes of answers wait for you to read them, at most %d: read them, or ask for less at once: %w",
			w.unread, mostUnread, errdefs.ErrResourceExhausted)
	}
	w.unread += bytes
	return nil
}

// windows are those of all peers of a port.
type windows struct {
	mu    sync.Mutex
	peers map[string]*window
}

// enter counts a connection of a peer; leave ends it.
func (ws *windows) enter(node string) (w *window, leave func(), err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w = ws.peers[node]; w == nil {
		w = newWindow()
		if ws.peers == nil {
			ws.peers = map[string]*window{}
		}
		ws.peers[node] = w
	}
	if w.conns >= mostConns {
		return nil, nil, fmt.Errorf("node %s has %d connections here, as many as it may: close some: %w", node, w.conns,
			errdefs.ErrResourceExhausted)
	}
	w.conns++
	return w, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if w.conns--; w.conns == 0 {
			delete(ws.peers, node)
		}
	}, nil
}

type peerConnKey struct{}

// peerConnOf is the connection that a call came on; nil: it is none of a server here.
func peerConnOf(ctx context.Context) *peerConn {
	l, _ := ctx.Value(peerConnKey{}).(*peerConn)
	return l
}

// answered counts what a call is answered, as ttrpc writes it: a Response, of which it is the one field.
// An answer that the peer's window refuses is an error in its place.
func answered(ctx context.Context, resp any, err error) (any, error) {
	l := peerConnOf(ctx)
	if l == nil {
		return resp, err
	}
	if m, ok := resp.(proto.Message); ok && err == nil {
		if err = l.admitAnswer(field(m), true); err == nil {
			return resp, nil
		}
		err = record.ToWire(err)
	}
	_ = l.admitAnswer(field(status.Convert(err).Proto()), false)
	return nil, err
}

func field(m proto.Message) int { return protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(m)) }

// listing waits until few lists of its peer are read, and answers how to end this one. What reads many
// records needs a multiple of its answer meanwhile.
func listing(ctx context.Context) (end func(), err error) {
	l := peerConnOf(ctx)
	if l == nil {
		return func() {}, nil
	}
	select {
	case l.window.lists <- struct{}{}:
		return func() { <-l.window.lists }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other lists of this node: %w", ctx.Err())
	}
}
