package events

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// fakeContainerd takes events on a socket, and can go away and come back.
type fakeContainerd struct {
	path   string
	server *ttrpc.Server
	conns  *conns

	mu     sync.Mutex
	refuse error
	topics []string
	frozen chan struct{} // closed when it goes on; nil: it goes
}

func (f *fakeContainerd) Forward(_ context.Context, r *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	f.mu.Lock()
	frozen := f.frozen
	f.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, errgrpc.ToGRPC(f.refuse)
	}
	f.topics = append(f.topics, r.GetEnvelope().GetNamespace()+" "+r.GetEnvelope().GetTopic())
	return &emptypb.Empty{}, nil
}

func (f *fakeContainerd) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", f.path)
	if err != nil {
		t.Fatal(err)
	}
	if f.server, err = ttrpc.NewServer(); err != nil {
		t.Fatal(err)
	}
	f.conns = &conns{Listener: l}
	eventsapi.RegisterTTRPCEventsService(f.server, f)
	go func(l net.Listener) { _ = f.server.Serve(context.WithoutCancel(t.Context()), l) }(f.conns)
}

// stop ends it as the end of a process does.
func (f *fakeContainerd) stop(t *testing.T) {
	t.Helper()
	if err := f.server.Close(); err != nil {
		t.Fatal(err)
	}
	f.conns.end()
}

// conns are the connections of a server: ttrpc's leaves one open that it accepts as it is closed.
type conns struct {
	net.Listener
	mu    sync.Mutex
	ended bool
	all   []net.Conn
}

func (l *conns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.ended {
		c.Close()
	} else if err == nil {
		l.all = append(l.all, c)
	}
	return c, err
}

func (l *conns) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.all {
		c.Close()
	}
}

// TestForwarder: an event reaches a containerd that has restarted in between; one that
// it refuses fails as such, and is not Unavailable.
func TestForwarder(t *testing.T) {
	c := &fakeContainerd{path: filepath.Join(t.TempDir(), "c.sock")}
	c.start(t)
	f := NewForwarder("unix://" + c.path)
	ctx := namespaces.WithNamespace(t.Context(), "ns")
	send := func(topic string) error { return f.Publish(ctx, topic, &events.TaskCreate{}) }
	if err := send("/one"); err != nil {
		t.Fatal(err)
	}
	c.stop(t)
	c.start(t)
	if err := send("/two"); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	c.mu.Lock() // of a server that closes, a call may be under way still
	c.refuse = errdefs.ErrInvalidArgument
	c.mu.Unlock()
	if err := send("/three"); !errdefs.IsInvalidArgument(err) || errdefs.IsUnavailable(err) {
		t.Errorf("a refused event: %v", err)
	}
	c.stop(t)
	// A containerd that dies with an event in hand gets it again from the next one.
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := slices.Compact(c.topics); !slices.Equal(got, []string{"ns /one", "ns /two"}) {
		t.Errorf("containerd got %q", c.topics)
	}
}

// TestForwarderAway: without containerd the event may be given again, at once.
func TestForwarderAway(t *testing.T) {
	c := &fakeContainerd{path: filepath.Join(t.TempDir(), "c.sock")}
	f := NewForwarder(c.path)
	ctx := namespaces.WithNamespace(t.Context(), "ns")
	if err := f.Publish(ctx, "/one", &events.TaskCreate{}); !errdefs.IsUnavailable(err) {
		t.Errorf("without containerd: %v", err)
	}
	c.start(t)
	if err := f.Publish(ctx, "/one", &events.TaskCreate{}); err != nil {
		t.Errorf("with containerd: %v", err)
	}
	c.stop(t)
	// A server that closes may still answer on a connection that it has.
	err := error(nil)
	for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end); {
		err = f.Publish(ctx, "/two", &events.TaskCreate{})
	}
	if !errdefs.IsUnavailable(err) {
		t.Errorf("containerd has gone: %v", err)
	}
}

// TestForwarderFrozen: a containerd that stands still gets an event once, however long it takes;
// one that dies meanwhile gets it from the next one's connection.
func TestForwarderFrozen(t *testing.T) {
	defer func(d time.Duration) { forwardBound = d }(forwardBound)
	c := &fakeContainerd{path: filepath.Join(t.TempDir(), "c.sock"), frozen: make(chan struct{})}
	c.start(t)
	f := NewForwarder(c.path)
	ctx := namespaces.WithNamespace(t.Context(), "ns")
	late := func(topic string, event any) {
		t.Helper()
		forwardBound = 20 * time.Millisecond
		for range 3 {
			if err := f.Publish(ctx, topic, event); !errdefs.IsUnavailable(err) {
				t.Fatalf("%s to a containerd that stands still: %v", topic, err)
			}
		}
		forwardBound = time.Minute
	}
	one, two := &events.TaskCreate{}, &events.TaskCreate{}
	late("/one", one)
	close(c.frozen)
	if err := f.Publish(ctx, "/one", one); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	if !slices.Equal(c.topics, []string{"ns /one"}) {
		t.Errorf("containerd got %q", c.topics)
	}
	c.frozen = make(chan struct{})
	c.mu.Unlock()
	late("/two", two)
	c.stop(t)
	next := &fakeContainerd{path: c.path}
	next.start(t)
	if err := f.Publish(ctx, "/two", two); err != nil || len(next.topics) != 1 {
		t.Errorf("after a restart: %v, it got %q", err, next.topics)
	}
	close(c.frozen)
}
