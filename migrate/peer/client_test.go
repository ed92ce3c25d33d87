package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/pki"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// several is a registry of nodes by their addresses.
type several map[string]string

func (n several) Node(name string) (*nodev1.NodeInfo, error) {
	return &nodev1.NodeInfo{Name: name, Address: n[name]}, nil
}
func (several) Nodes() []*nodev1.NodeInfo { return nil }
func (several) Leads(string, string) bool { return true }

func peers(t *testing.T, as *pki.Identity, all several) *Peers {
	t.Helper()
	p := &Peers{Registry: all, Self: "first", TLS: func(name string) (*tls.Config, error) {
		return as.ClientOf(name), nil
	}}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func serveNode(t *testing.T, id *pki.Identity, m Machines) (address string) {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterPeerService(srv, &Server{Node: "n1", Machines: m})
	l := listen(t)
	go func() { _ = controller.ServePeer(t.Context(), srv, l, id) }()
	return l.Addr().String()
}

// query asks a node within ctx.
func query(ctx context.Context, p *Peers, node string) error {
	peer, err := p.Peer(node)
	if err != nil {
		return err
	}
	_, err = peer.Query(ctx, &nodev1.PeerRef{Vm: &nodev1.VM{Namespace: "default", Id: "web"}})
	return err
}

// silent accepts connections, says nothing, and tells of each.
func silent(t *testing.T) (address string, accepted chan struct{}) {
	t.Helper()
	l := listen(t)
	accepted = make(chan struct{}, 8)
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			accepted <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().String(), accepted
}

// A node that takes a connection and does not go on delays no caller of another node, connected
// or not. A caller of the same node waits for the same connection, and no longer than it wanted.
func TestOneNodeHoldsUpNoOther(t *testing.T) {
	first, node := cluster(t)
	away, accepted := silent(t)
	p := peers(t, first, several{"n1": serveNode(t, node, &shims{}), "away": away})
	hung := make(chan error, 1)
	go func() { hung <- query(t.Context(), p, "away") }()
	<-accepted
	for range 2 {
		if err := query(t.Context(), p, "n1"); err != nil {
			t.Fatal(err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var link *engine.LinkError
	if err := query(gone, p, "away"); !errors.As(err, &link) || !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	select {
	case err := <-hung:
		t.Fatalf("all of them waited for the node that is away: %v", err)
	default:
	}
	if err := <-hung; !errors.As(err, &link) {
		t.Errorf("a node that is away: %v", err)
	}
	if len(accepted) != 0 {
		t.Errorf("%d connections more were made to it", len(accepted))
	}
}

// slow are shims that answer when they are let go.
type slow struct {
	shims
	asked, let chan struct{}
}

func (s *slow) Query(ctx context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error) {
	s.asked <- struct{}{}
	<-s.let
	return s.shims.Query(ctx, vm)
}

// A call that ran out of time says that the node does not answer where nothing was heard of it
// for long enough. It ends no other call on that connection. Where the node was heard of, the
// call is only late.
func TestCallRunsOutOfTime(t *testing.T) {
	before := silence
	t.Cleanup(func() { silence = before })
	first, node := cluster(t)
	m := &slow{asked: make(chan struct{}, 8), let: make(chan struct{})}
	p := peers(t, first, several{"n1": serveNode(t, node, m)})
	other := make(chan error, 1)
	go func() { other <- query(t.Context(), p, "n1") }()
	<-m.asked
	late := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return query(ctx, p, "n1")
	}
	var link *engine.LinkError
	silence = time.Hour
	if err := late(); errors.As(err, &link) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
	silence = time.Nanosecond
	if err := late(); !errors.As(err, &link) || !errdefs.IsUnavailable(err) {
		t.Errorf("silent: %v", err)
	}
	close(m.let)
	if err := <-other; err != nil {
		t.Errorf("another call on that connection: %v", err)
	}
}

// A controller without VMs asks itself nothing, and no other one that has none.
func TestControllerWithoutVMs(t *testing.T) {
	alone := &Peers{Registry: alone{}, Self: "first", TLS: func(string) (*tls.Config, error) { return nil, nil }}
	for _, node := range []string{"first", "second"} {
		if _, err := alone.Peer(node); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", node, err)
		}
	}
}

// alone is a registry of controllers without VMs.
type alone struct{ several }

func (alone) Node(name string) (*nodev1.NodeInfo, error) {
	return &nodev1.NodeInfo{Name: name, Address: "10.0.0.1:1", Controller: true, ControllerOnly: true}, nil
}
