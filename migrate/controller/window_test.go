package controller

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// largeLists answers each list with one large record, the rest of one with a small record, and counts them.
type largeLists struct {
	nodev1.RecordsService
	bytes int
	calls atomic.Int64
}

func (l *largeLists) List(_ context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	l.calls.Add(1)
	if req.GetAfter() != "" {
		return &nodev1.ListResponse{Records: []*nodev1.Record{{Uid: "small"}}}, nil
	}
	return &nodev1.ListResponse{Records: []*nodev1.Record{{Uid: strings.Repeat("x", l.bytes)}}}, nil
}

// port is one of a controller, to which nodes connect.
type port struct {
	t     *testing.T
	srv   *ttrpc.Server
	peers windows
}

func newPort(t *testing.T, records nodev1.RecordsService) *port {
	t.Helper()
	srv, err := NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterRecordsService(srv, records)
	return &port{t: t, srv: srv}
}

func (p *port) connect(ctx context.Context, node string) (net.Conn, error) {
	here, there := net.Pipe()
	err := admit(ctx, p.srv, here, func(context.Context, net.Conn) (context.Context, net.Conn, error) {
		return WithPeer(ctx, node), here, nil
	}, &p.peers)
	return there, err
}

// asks writes so many calls, with a payload of that size, and reads no answer.
func asks(t *testing.T, conn net.Conn, calls, bytes int) {
	t.Helper()
	payload, err := proto.Marshal(&nodev1.ListRequest{Node: "n", After: strings.Repeat("x", bytes)})
	if err != nil {
		t.Fatal(err)
	}
	body, err := proto.Marshal(&ttrpc.Request{Service: "godwit.node.v1.Records", Method: "List", Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for i := range calls {
			header := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
			header = binary.BigEndian.AppendUint32(header, uint32(2*i+1))
			if _, err := conn.Write(append(append(header, frameRequest, 0), body...)); err != nil {
				return
			}
		}
	}()
}

// answers reads so many, and counts those that are refusals.
func answers(t *testing.T, conn net.Conn, calls int) (refused int) {
	t.Helper()
	r := bufio.NewReader(conn)
	for range calls {
		var header [frameHeader]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, binary.BigEndian.Uint32(header[:4]))
		var resp ttrpc.Response
		if _, err := io.ReadFull(r, body); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(body, &resp); err != nil {
			t.Fatal(err)
		}
		if resp.GetStatus().GetCode() == 0 {
			continue
		}
		if err := record.FromWire(status.ErrorProto(resp.GetStatus())); !errdefs.IsResourceExhausted(err) ||
			!strings.Contains(err.Error(), "read them") {
			t.Fatal(err)
		}
		refused++
	}
	return refused
}

func (p *port) window(node string) (calls, asked, unread int) {
	p.peers.mu.Lock()
	w := p.peers.peers[node]
	p.peers.mu.Unlock()
	if w == nil {
		return 0, 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls, w.asked, w.unread
}

// A node that asks for lists without end and reads none has few calls and few bytes here, over all its connections.
// Another node is answered meanwhile. Once it reads, each of its calls is answered.
func TestNodeThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, size = mostCalls, 256 << 10
		records := &largeLists{bytes: size}
		p := newPort(t, records)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		one, err := p.connect(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		two, err := p.connect(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		asks(t, one, calls, 0)
		asks(t, two, calls, 0)
		synctest.Wait()
		if n := records.calls.Load(); n > mostCalls+1 {
			t.Errorf("%d calls of a node that reads nothing were begun, at most %d", n, mostCalls)
		}
		if _, _, unread := p.window("a"); unread > mostUnread+2*size || unread < mostUnread {
			t.Errorf("%d bytes of answers wait for it, at most %d", unread, mostUnread)
		}
		for node, bytes := range map[string]int{"b": 0, "a": 1} {
			other, err := p.connect(ctx, node)
			if err != nil {
				t.Fatal(err)
			}
			asks(t, other, 1, bytes)
			if answers(t, other, 1) != 0 {
				t.Errorf("a call of node %s is refused", node)
			}
		}
		if answers(t, one, calls)+answers(t, two, calls) == 0 {
			t.Error("no answer was refused")
		}
		synctest.Wait()
		if calls, asked, unread := p.window("a"); calls != 0 || asked != 0 || unread != 0 {
			t.Errorf("all is answered, and %d calls, %d and %d bytes are counted", calls, asked, unread)
		}
		cancel()
		synctest.Wait()
		if len(p.peers.peers) != 0 {
			t.Error("a connection that has ended is counted")
		}
	})
}

// A node may send large requests, and take no answer for as long as a host that is gone is waited for. It loses its
// connection, and what it has here with it.
func TestNodeThatNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		p := newPort(t, &largeLists{bytes: 10})
		conn, err := p.connect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		asks(t, conn, 100, size)
		synctest.Wait()
		if _, asked, _ := p.window("a"); asked > mostAsked/share+size+1000 {
			t.Errorf("requests of %d bytes are kept, at most %d", asked, mostAsked/share)
		}
		time.Sleep(link.Gone + time.Second)
		synctest.Wait()
		_ = conn.Close()
		synctest.Wait()
		if len(p.peers.peers) != 0 {
			t.Error("it is there still")
		}
	})
}

// A node has so many connections and no more, whatever others have.
func TestConnectionsOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, &largeLists{})
		ctx, cancel := context.WithCancel(t.Context())
		for i := range mostConns + 1 {
			if _, err := p.connect(ctx, "a"); i < mostConns && err != nil || i == mostConns &&
				!errdefs.IsResourceExhausted(err) {
				t.Errorf("connection %d: %v", i+1, err)
			}
		}
		if _, err := p.connect(ctx, "b"); err != nil {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
		if _, err := p.connect(t.Context(), "a"); err != nil {
			t.Errorf("after the others have ended: %v", err)
		}
		_ = p.srv.Close()
	})
}

// slowStore is long about each look for records, and counts them.
type slowStore struct {
	*storetest.Memory
	finds atomic.Int64
	open  chan struct{}
}

func (s *slowStore) Find(ctx context.Context, which store.Which) (store.Found, error) {
	s.finds.Add(1)
	<-s.open
	return s.Memory.Find(ctx, which)
}

// Of the lists that a node asks for at once few are read at a time. Those of another node do not wait for them.
func TestListsOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowStore{Memory: storetest.NewMemory(), open: make(chan struct{})}
		p := newPort(t, New(st))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i, node := range []string{"a", "b"} {
			conn, err := p.connect(ctx, node)
			if err != nil {
				t.Fatal(err)
			}
			asks(t, conn, 100, 0)
			synctest.Wait()
			if n := st.finds.Load(); n != int64(i+1)*mostLists {
				t.Errorf("%d lists are read for %d nodes, %d for each", n, i+1, mostLists)
			}
			defer answers(t, conn, 100)
		}
		close(st.open)
	})
}
