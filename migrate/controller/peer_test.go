package controller_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// remote is a controller that other nodes reach.
type remote struct {
	address string
	local   *record.Client
	store   store.Store
	token   func(node string, controller bool) string
	stop    func()
}

func serveRemote(t *testing.T) *remote {
	t.Helper()
	return serveRemoteOn(t, func(l net.Listener) net.Listener { return l })
}

// serveRemoteOn is serveRemote on what wrap makes of its listener.
func serveRemoteOn(t *testing.T, wrap func(net.Listener) net.Listener) *remote {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, "first", []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	r := serveStoreOn(t, st, id, authority, wrap)
	r.store = st
	r.token = func(node string, role bool) string {
		text, err := authority.Token(node, time.Minute, role)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	return r
}

// serveStore is one of the controllers that keep their records in st.
func serveStore(t *testing.T, st store.Store, id *pki.Identity, authority *pki.Authority) *remote {
	t.Helper()
	return serveStoreOn(t, st, id, authority, func(l net.Listener) net.Listener { return l })
}

func serveStoreOn(t *testing.T, st store.Store, id *pki.Identity, authority *pki.Authority,
	wrap func(net.Listener) net.Listener) *remote {
	t.Helper()
	svc := controller.New(st)
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterRecordsService(srv, svc)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = controller.ServeTLS(t.Context(), srv, wrap(l), id, authority) })
	stop := sync.OnceFunc(func() { _ = srv.Close(); _ = l.Close(); wg.Wait() })
	t.Cleanup(stop)
	return &remote{address: l.Addr().String(), local: dial(t, serveLocal(t, svc)), stop: stop}
}

// identity makes a node of the cluster.
func (r *remote) identity(t *testing.T, node string, controller bool) *pki.Identity {
	t.Helper()
	dir := t.TempDir()
	if _, err := pki.Join(t.Context(), dir, r.address, r.token(node, controller), nil); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// join makes a node of the cluster and its client.
func (r *remote) join(t *testing.T, node string) *record.Client {
	t.Helper()
	id := r.identity(t, node, false)
	c, err := record.DialTLS(t.Context(), r.address, id.Client())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestPeerActsOnlyForItself shows: a node's calls are refused where another node is
// meant, and change nothing.
func TestPeerActsOnlyForItself(t *testing.T) {
	r := serveRemote(t)
	mine, rogue := r.join(t, "src"), r.join(t, "rogue")
	seen := asleep(t, mine, "web", "sha256:aa") // src's own calls are accepted
	if err := wake(t, r.local, seen, "dst", func() {}); err != nil {
		t.Fatalf("local caller: %v", err)
	}
	ctx, vm := t.Context(), seen.Vm
	g := seen.Generation + 1
	if _, err := r.local.Open(ctx,
		&nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: "h2", Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1,
			Source: "dst", Generation: g}}); err != nil {
		t.Fatal(err)
	}
	before, err := rogue.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil {
		t.Fatal(err)
	}
	other := &nodev1.VM{Namespace: "default", Id: "fresh"}
	if _, err := rogue.Ensure(ctx, &nodev1.EnsureRequest{Vm: other}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"own": func() error { _, err := rogue.Own(ctx, &nodev1.OwnRequest{Vm: other, Node: "src"}); return err },
		"Disown": func() error {
			_, err := rogue.Disown(ctx, &nodev1.DisownRequest{Vm: vm, Node: "dst", Generation: g})
			return err
		},
		"open": func() error {
			_, err := rogue.Open(ctx,
				&nodev1.OpenRequest{Vm: other, Operation: &nodev1.Operation{Id: "x", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1,
					Destination: "src"}})
			return err
		},
		"advance": func() error {
			_, err := rogue.Advance(ctx, &nodev1.AdvanceRequest{Vm: vm, Operation: "h2", Attempt: 1, Generation: g,
				Phase: nodev1.Phase_PHASE_ABORTING})
			return err
		},
		"commit": func() error {
			_, err := rogue.Commit(ctx, &nodev1.CommitRequest{Vm: vm, Operation: "h2", Attempt: 1, Generation: g,
				Owner: &nodev1.Owner{Digest: "sha256:bb"}})
			return err
		},
		"finish": func() error {
			_, err := rogue.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: "h2", Attempt: 1, Generation: g,
				Phase: nodev1.Phase_PHASE_FAILED})
			return err
		},
	}
	of := func(name string, do func(c *record.Client) error) { calls[name] = func() error { return do(rogue) } }
	of("trim", func(c *record.Client) error {
		_, err := c.Trim(ctx, &nodev1.TrimRequest{Vm: vm, Digest: "sha256:aa"})
		return err
	})
	of("pin", func(c *record.Client) error {
		pinned := false
		_, err := c.Pin(ctx, &nodev1.PinRequest{Vm: vm, Digest: "sha256:aa", Pinned: &pinned})
		return err
	})
	of("schedule", func(c *record.Client) error {
		_, err := c.Schedule(ctx, &nodev1.ScheduleRequest{Vm: vm, Schedule: &nodev1.Schedule{EveryMs: 60000, Keep: 1}})
		return err
	})
	of("delete", func(c *record.Client) error {
		_, err := c.Delete(ctx, &nodev1.DeleteRequest{Vm: vm, Deletion: &nodev1.Deletion{Id: "d"}})
		return err
	})
	of("remove", func(c *record.Client) error {
		_, err := c.Remove(ctx, &nodev1.RemoveRequest{Vm: vm, Force: true})
		return err
	})
	of("reclaim", func(c *record.Client) error {
		_, err := c.Reclaim(ctx, &nodev1.ReclaimRequest{Vm: vm, Operation: "h2", Generation: g, LostNode: "dst"})
		return err
	})
	of("take from a lost node", func(c *record.Client) error {
		_, err := c.Open(ctx, &nodev1.OpenRequest{Vm: vm, ForceDigest: "sha256:aa", LostNode: "dst",
			Operation: &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "rogue", Generation: g,
				Digest: "sha256:aa"}})
		return err
	})
	moved := asleep(t, mine, "moved", "sha256:cc")
	if err := wake(t, r.local, moved, "src", func() {}); err != nil {
		t.Fatal(err)
	}
	order := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: "src", Destination: "rogue",
		Generation: moved.Generation + 1}
	for who, c := range map[string]*record.Client{"its destination": rogue, "its source": mine} {
		calls["open a move by "+who] = func() error {
			_, err := c.Open(ctx, &nodev1.OpenRequest{Vm: moved.Vm, Operation: order})
			return err
		}
		calls["commit a move by "+who] = func() error {
			if _, err := r.local.Open(ctx, &nodev1.OpenRequest{Vm: moved.Vm, Operation: order}); err != nil {
				return err
			}
			_, err := c.Commit(ctx, &nodev1.CommitRequest{Vm: moved.Vm, Operation: "m", Attempt: 1, Generation: order.Generation,
				Owner: &nodev1.Owner{Node: "rogue"}})
			return err
		}
	}
	for name, call := range calls {
		if err := call(); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v, want PermissionDenied", name, err)
		}
	}
	after, err := rogue.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil || after.Version != before.Version {
		t.Errorf("record changed from %v to %v (%v)", before, after, err)
	}
}

// A node decides about what it has, and about what sleeps and was its own last.
func TestPeerDecidesAboutItsOwn(t *testing.T) {
	r := serveRemote(t)
	mine, other := r.join(t, "src"), r.join(t, "other")
	seen, ctx := asleep(t, mine, "web", "sha256:aa"), t.Context()
	every := &nodev1.ScheduleRequest{Vm: seen.GetVm(), Schedule: &nodev1.Schedule{EveryMs: 60000, Keep: 1}}
	if _, err := other.Schedule(ctx, every); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a VM that slept at another node: %v", err)
	}
	if _, err := mine.Schedule(ctx, every); err != nil {
		t.Errorf("a VM that slept here: %v", err)
	}
	pinned := true
	pin := &nodev1.PinRequest{Vm: seen.GetVm(), Digest: "sha256:aa", Pinned: &pinned}
	if _, err := other.Pin(ctx, pin); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a snapshot of a VM that slept at another node: %v", err)
	}
	if rec, err := mine.Pin(ctx, pin); err != nil || !rec.GetSnapshots()[0].GetPinned() {
		t.Errorf("a snapshot of a VM that slept here: %v, %v", rec, err)
	}
	if err := wake(t, mine, seen, "src", func() {}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Schedule(ctx, every); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a VM of another node: %v", err)
	}
	every.Schedule.Keep = 2
	if _, err := mine.Schedule(ctx, every); err != nil {
		t.Errorf("a VM of its own: %v", err)
	}
}

// TestProxy serves a node's own socket from a controller that goes away and comes back
// at no time with an old answer.
func TestProxy(t *testing.T) {
	r := serveRemote(t)
	shim := dial(t, serveLocal(t, r.join(t, "src")))
	seen := asleep(t, shim, "web", "sha256:aa")
	err := wake(t, shim, &nodev1.Record{Vm: seen.Vm, Generation: seen.Generation}, "dst", func() {})
	if !errdefs.IsPermissionDenied(err) {
		t.Fatalf("through the proxy of src, for dst: %v", err)
	}
	r.stop()
	for end := time.Now().Add(time.Minute); ; { // a connection that is being closed may answer a call still
		if _, err = shim.Get(t.Context(), &nodev1.GetRequest{Vm: seen.Vm}); err != nil || time.Now().After(end) {
			break
		}
	}
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), r.address) {
		t.Fatalf("controller gone: %v, want Unavailable naming %s", err, r.address)
	}
}

// TestClientReconnects ends the connection under a client.
func TestClientReconnects(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	socket := filepath.Join(t.TempDir(), "s")
	var client *record.Client
	for range 3 {
		srv, err := controller.NewServer()
		if err != nil {
			t.Fatal(err)
		}
		nodev1.RegisterRecordsService(srv, controller.New(st))
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = controller.ServeLocal(t.Context(), srv, l) })
		if client == nil {
			client = dial(t, socket)
		}
		if _, err := client.List(t.Context(), &nodev1.ListRequest{}); err != nil {
			t.Fatal(err)
		}
		_ = srv.Close()
		_ = l.Close()
		wg.Wait()
	}
	// Close returns before the connections are closed, so that a call may still slip in.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		_, err := client.List(ctx, &nodev1.ListRequest{})
		if errdefs.IsUnavailable(err) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("without a server: %v", err)
		}
	}
}

// TestSeveralControllers shows that a node whose controller is gone asks the next one, which keeps the same
// records. A joined node without the role is no controller.
func TestSeveralControllers(t *testing.T) {
	first := serveRemote(t)
	second := serveStore(t, first.store, first.identity(t, "second", true), nil)
	rogue := serveStore(t, first.store, first.identity(t, "rogue", false), nil)
	node := first.identity(t, "src", false)
	c := record.Remote([]string{first.address, rogue.address, second.address}, node.Client())
	t.Cleanup(func() { _ = c.Close() })
	seen := asleep(t, c, "web", "sha256:aa")
	first.stop()
	var got *nodev1.Record
	for deadline := time.Now().Add(10 * time.Second); got == nil; {
		var err error
		if got, err = c.Get(t.Context(), &nodev1.GetRequest{Vm: seen.Vm}); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got.GetVersion() != seen.GetVersion() || got.GetOwner().GetDigest() != "sha256:aa" {
		t.Errorf("the second controller answers %v", got)
	}
	second.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		_, err := c.Get(ctx, &nodev1.GetRequest{Vm: seen.Vm})
		if errdefs.IsUnavailable(err) && strings.Contains(err.Error(), rogue.address) {
			return
		}
	}
	t.Error("a node that is no controller was asked")
}

// TestWithoutCertificate shows that the port answers no peer without a certificate.
func TestWithoutCertificate(t *testing.T) {
	r := serveRemote(t)
	stranger := serveRemote(t)
	dir := t.TempDir()
	if _, err := pki.Join(t.Context(), dir, stranger.address, stranger.token("src", false), nil); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	config := id.Client()
	config.VerifyConnection = nil // the stranger trusts everybody
	c := record.Remote([]string{r.address}, config)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.List(t.Context(), &nodev1.ListRequest{}); !errdefs.IsUnavailable(err) {
		t.Fatalf("a node of another cluster: %v", err)
	}
}
