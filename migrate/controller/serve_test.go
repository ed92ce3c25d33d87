package controller_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/connlimit"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// failing is a listener whose Accept number at fails.
type failing struct {
	net.Listener
	at    int32
	errno syscall.Errno
	calls atomic.Int32
}

func (f *failing) Accept() (net.Conn, error) {
	if f.calls.Add(1) == f.at {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", f.errno)}
	}
	return f.Listener.Accept()
}

// A socket whose Accept fails, at the first connection or a later one, goes on with the next.
func TestAcceptFails(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM} {
		for at := range int32(3) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			serveOn(t, &failing{Listener: l, at: at + 1, errno: errno}, controller.New(storetest.NewMemory()))
			for n := range 3 {
				client := record.Local(socket)
				if _, err := client.List(t.Context(), &nodev1.ListRequest{}); err != nil {
					t.Errorf("%v at %d: client %d: %v", errno, at, n, err)
				}
				_ = client.Close()
			}
		}
	}
}

// serveOn answers local callers; stop ends it as the end of a daemon does.
func serveOn(t *testing.T, l net.Listener, records nodev1.RecordsService) (stop func()) {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterRecordsService(srv, records)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := controller.ServeLocal(ctx, srv, l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// endless are records whose List answers when its call ends.
type endless struct {
	nodev1.RecordsService
	asked, ended chan struct{}
}

func (s *endless) List(ctx context.Context, _ *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	s.ended <- struct{}{}
	return nil, ctx.Err()
}

// A caller of a daemon that is being stopped hears that no server answers, and never that the call was called off.
// The call itself ends.
func TestCallsEndWithTheServer(t *testing.T) {
	for range 20 {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := &endless{asked: make(chan struct{}), ended: make(chan struct{}, 1)}
		stop := serveOn(t, l, s)
		client := record.Local(socket)
		heard := make(chan error, 1)
		go func() {
			_, err := client.List(t.Context(), &nodev1.ListRequest{})
			heard <- err
		}()
		<-s.asked
		stop()
		if err := <-heard; !errdefs.IsUnavailable(err) {
			t.Errorf("the client hears %v", err)
		}
		select {
		case <-s.ended:
		case <-t.Context().Done():
			t.Fatal("the call goes on")
		}
		_ = client.Close()
	}
}

// A server that has ended holds nothing: who connected in its last moment is closed, and the next one
// has the socket.
func TestEndsWhole(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	for n := range 300 {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		stop := serveOn(t, l, controller.New(storetest.NewMemory()))
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatalf("round %d: %v", n, err)
		}
		stop()
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("round %d: who connected still waits", n)
		}
		_ = conn.Close()
	}
}

// endsAt is a context that ends between two questions whether it has ended.
type endsAt struct {
	context.Context
	at    int32
	asked atomic.Int32
}

func (c *endsAt) Err() error {
	if c.asked.Add(1) > c.at {
		return context.Canceled
	}
	return c.Context.Err()
}

// A server closes every connection that it has accepted, at whichever moment it is stopped.
func TestEndsAtAnyMoment(t *testing.T) {
	for at := range int32(4) {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		srv, err := controller.NewServer()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = controller.ServeLocal(&endsAt{Context: ctx, at: at}, srv, l) })
		time.AfterFunc(100*time.Millisecond, cancel)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ended after %d questions: who connected still waits", at)
		}
		cancel()
		wg.Wait()
		_ = conn.Close()
	}
}

// pipes is a listener in the process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Who does not say in time who it is, with nothing or with a byte each second, is closed.
func TestHandshakeHasADeadline(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, "first", nil); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	for name, drip := range map[string]bool{"silent": false, "drips": true} {
		synctest.Test(t, func(t *testing.T) {
			srv, err := controller.NewServer()
			if err != nil {
				t.Fatal(err)
			}
			l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			defer synctest.Wait()
			defer cancel()
			go func() { _ = controller.ServePeer(ctx, srv, l, id) }()
			here, there := net.Pipe()
			l.conns <- there
			begun := time.Now()
			var dripping sync.WaitGroup
			if drip {
				dripping.Go(func() {
					for _, b := range append([]byte{22, 3, 1, 2, 0}, make([]byte, 512)...) {
						if _, err := here.Write([]byte{b}); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				})
			}
			for err == nil { // an alert may come
				_, err = here.Read(make([]byte, 64))
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("%s: closed after %v: %v", name, took, err)
			}
			_ = here.Close()
			dripping.Wait()
		})
	}
}

// Silent clients, as many as there may be and more, take nothing from a node: neither the connection
// that it has nor the next one.
func TestFlood(t *testing.T) {
	r := serveGated(t)
	node := r.join(t, "src") // from 127.0.0.1
	if _, err := node.List(t.Context(), &nodev1.ListRequest{}); err != nil {
		t.Fatal(err)
	}
	closed := 0
	for n := range connlimit.MostOfAll + 2*connlimit.MostOfAddress {
		if !r.silent(t, byte(2+n/connlimit.MostOfAddress)) {
			closed++
		}
	}
	if closed == 0 {
		t.Error("all of the silent ones were let in")
	}
	if _, err := node.List(t.Context(), &nodev1.ListRequest{}); err != nil {
		t.Errorf("by its connection: %v", err)
	}
	again := record.Remote([]string{r.address}, r.id.Client())
	t.Cleanup(func() { _ = again.Close() })
	if _, err := again.List(t.Context(), &nodev1.ListRequest{}); err != nil {
		t.Errorf("by a new one: %v", err)
	}
}

// gated is a controller whose unknown clients are bounded.
type gated struct {
	*remote
	id *pki.Identity
	in chan struct{} // a connection was let in
}

// counting tells of each connection that it lets in.
type counting struct {
	net.Listener
	in chan struct{}
}

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		select {
		case c.in <- struct{}{}:
		default:
		}
	}
	return conn, err
}

func serveGated(t *testing.T) *gated {
	t.Helper()
	figures, err := connlimit.NewFigures(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	in := make(chan struct{}, 2*connlimit.MostOfAll)
	return &gated{remote: serveRemoteOn(t, func(l net.Listener) net.Listener {
		return counting{connlimit.Listen(l, "p", figures), in}
	}), in: in}
}

func (g *gated) join(t *testing.T, node string) *record.Client {
	t.Helper()
	g.id = g.identity(t, node, false)
	c, err := record.DialTLS(t.Context(), g.address, g.id.Client())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// silent is a client at 127.0.0.n that says nothing; it reports whether it was let in.
func (g *gated) silent(t *testing.T, n byte) bool {
	t.Helper()
	for len(g.in) > 0 {
		<-g.in
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}
	c, err := d.DialContext(t.Context(), "tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	closed := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		closed <- err
	}()
	select {
	case <-g.in:
		return true
	case err := <-closed:
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return false
	}
}
