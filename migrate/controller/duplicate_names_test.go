package controller_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/pki"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// issued is a certificate of node src that is made at this moment.
func issued(t *testing.T, a *pki.Authority) *pki.Identity {
	t.Helper()
	dir := t.TempDir()
	csr, err := pki.Request(dir, "src", nil)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Sign(csr, "src")
	if err == nil {
		err = pki.Install(dir, "src", chain)
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Two certificates of one name may be connected at once. The one that was issued last is served and the other
// refused, whichever came first. Both are told of. With its last connection a certificate is forgotten, and the
// same certificate may have many.
func TestTwoMachinesOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "pki")
		if err := pki.Init(dir, "first", nil); err != nil {
			t.Fatal(err)
		}
		authority, err := pki.OpenAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		first, err := pki.Load(pki.In(dir))
		if err != nil {
			t.Fatal(err)
		}
		older := issued(t, authority)
		time.Sleep(time.Hour)
		newer := issued(t, authority)
		srv, err := controller.NewServer()
		if err != nil {
			t.Fatal(err)
		}
		nodev1.RegisterRecordsService(srv, controller.New(storetest.NewMemory()))
		var mu sync.Mutex
		var told []string
		doubles := &controller.DuplicateNames{Told: func(node, reason string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, node+": "+reason)
		}}
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = controller.ServeTLS(ctx, srv, l, first, nil, doubles) })
		defer func() { cancel(); _ = l.Close(); _ = srv.Close(); wg.Wait() }()
		var opened []net.Conn
		dial := func(id *pki.Identity) (*tls.Conn, bool) {
			here, there := net.Pipe()
			l.conns <- there
			opened = append(opened, here)
			c := tls.Client(here, id.Client())
			if err := c.Handshake(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			_, err := c.Read(make([]byte, 1))
			return c, errors.Is(err, os.ErrDeadlineExceeded) // it is open, and nothing was said
		}
		old, ok := dial(older)
		if _, again := dial(older); !ok || !again {
			t.Fatal("a node that connects twice is refused")
		}
		fresh, ok := dial(newer)
		if !ok {
			t.Error("the newer certificate is refused")
		}
		_ = old.SetReadDeadline(time.Time{})
		if _, err := old.Read(make([]byte, 1)); err == nil {
			t.Error("the older one's connection stays")
		}
		if _, ok := dial(older); ok {
			t.Error("the older certificate is served with the newer")
		}
		if names := doubles.Refused(time.Hour); len(names) != 1 || names[0] != "src" {
			t.Errorf("refused: %v", names)
		}
		if _, ok := dial(older); ok {
			t.Error("the older certificate is served at its second try")
		}
		mu.Lock()
		if len(told) != 2 {
			t.Errorf("told %q", told)
		}
		mu.Unlock()
		_ = fresh.Close()
		synctest.Wait()
		if _, ok := dial(older); !ok {
			t.Error("with no other of that name there the older certificate is refused")
		}
		for _, c := range opened {
			_ = c.Close()
		}
		cancel()
		synctest.Wait()
	})
}

// A name that is taken is refused with the token unspent, and a renewal is not asked about it.
func TestJoinUnderATakenName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, "first", []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	taken := true
	authority.Taken = func(node string) error {
		if !taken || node != "src" {
			return nil
		}
		return &record.HeldError{Call: "join as node " + node}
	}
	r := serveStore(t, storetest.NewMemory(), id, authority)
	plain, err := authority.Token("src", time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	renewal, err := authority.Renewal("src", time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Join(t.Context(), t.TempDir(), r.address, plain, nil); err == nil {
		t.Error("a second machine has joined under a name that is taken")
	}
	if _, err := pki.Join(t.Context(), t.TempDir(), r.address, renewal, nil); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	taken = false
	if _, err := pki.Join(t.Context(), t.TempDir(), r.address, plain, nil); err != nil {
		t.Errorf("once the name is free the token is good: %v", err)
	}
}
