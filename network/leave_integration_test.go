//go:build integration

package network

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reset reports whether a connection to the address of a MAC is answered by a reset.
func reset(t *testing.T, ns, mac string) bool {
	t.Helper()
	sh(t, ns, "ip", "neigh", "replace", "10.88.0.2", "lladdr", mac, "dev", "eth0", "nud", "permanent")
	return errors.Is(dial(t, ns), unix.ECONNREFUSED)
}

// dial connects to 10.88.0.2 from a namespace.
func dial(t *testing.T, ns string) error {
	t.Helper()
	in, err := os.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return within(in, func() error {
		_, err := net.DialTimeout("tcp4", "10.88.0.2:8080", time.Second)
		return err
	})
}

// A namespace that is for a guest neither resets its connections nor answers who has its address, also where it is made
// for it twice.
func TestForGuest(t *testing.T) {
	f := newFabric(t, 2, 1500)
	ns, peer := f.nodes[0], f.nodes[1]
	mac := mustRead(t, ns)[0].NIC.MAC
	if !reset(t, peer, mac) {
		t.Error("no reset from a namespace as any other: this test proves nothing")
	}
	for range 2 {
		if err := ForGuest(ns); err != nil {
			t.Fatal(err)
		}
	}
	if reset(t, peer, mac) {
		t.Error("the host answers for a guest that is to come")
	}
	sh(t, peer, "ip", "neigh", "del", "10.88.0.2", "dev", "eth0")
	err := dial(t, peer)
	if out := sh(t, peer, "ip", "neigh", "show", "10.88.0.2"); err == nil || strings.Contains(out, mac) {
		t.Errorf("the host says that it has the address of a guest that is to come: %v, %s", err, out)
	}
}

// A network that a VM has left for another node says nothing in its place, from whatever state. One that is given back
// does, which is why there are both.
func TestLeave(t *testing.T) {
	f := newFabric(t, 2, 1500)
	ns, peer := f.nodes[0], f.nodes[1]
	sure(t, ns)
	links := mustRead(t, ns)
	mac := links[0].NIC.MAC
	attached := func() {
		t.Helper()
		a, err := Attach(t.Context(), ns, owner, links)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Up(t.Context()), a.Close()); err != nil {
			t.Fatal(err)
		}
	}
	attached()
	if reset(t, peer, mac) {
		t.Error("the host answers for a guest that is attached")
	}
	if err := Detach(t.Context(), ns, links); err != nil {
		t.Fatal(err)
	}
	if !reset(t, peer, mac) {
		t.Error("no reset from an interface that was given back: this test proves nothing")
	}
	attached()
	for range 2 {
		if err := DetachMoved(t.Context(), ns, links); err != nil {
			t.Fatal(err)
		}
		silent(t, ns)
	}
	if reset(t, peer, mac) {
		t.Error("the host answers for a guest that has left")
	}
	if err := Detach(t.Context(), ns, links); err != nil {
		t.Fatal(err)
	}
	if err := DetachMoved(t.Context(), ns, links); err != nil {
		t.Fatal(err)
	}
	silent(t, ns)
	sh(t, ns, "ip", "link", "del", "eth0") // as CNI does
	if err := DetachMoved(t.Context(), ns, links); err != nil {
		t.Error(err)
	}
}

func silent(t *testing.T, ns string) {
	t.Helper()
	if got := sh(t, ns, "ip", "-o", "addr", "show", "dev", "eth0"); got != "" {
		t.Errorf("addresses left: %s", got)
	}
	if got := sh(t, ns, "ip", "-o", "link", "show", "dev", "eth0"); !strings.Contains(got, "state DOWN") {
		t.Errorf("link: %s", got)
	}
	if got := interfaces(t, ns); len(got) != 2 {
		t.Errorf("interfaces %v", got)
	}
}

// Each step may fail; the next Leave ends it.
func TestLeaveFailsAtEachStep(t *testing.T) {
	f := newFabric(t, 1, 1500)
	ns := f.nodes[0]
	sure(t, ns)
	links := mustRead(t, ns)
	for n := 1; ; n++ {
		a, err := Attach(t.Context(), ns, owner, links)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := openSession(ns)
		if err != nil {
			t.Fatal(err)
		}
		step := 0
		s.fail = func(string) error {
			if step++; step == n {
				return errors.New("injected")
			}
			return nil
		}
		err = s.detachMoved(t.Context(), links)
		s.close()
		if err := DetachMoved(t.Context(), ns, links); err != nil {
			t.Fatal(err)
		}
		silent(t, ns)
		if step < n {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil {
			t.Errorf("step %d failed and Leave did not", n)
		}
		if err := Detach(t.Context(), ns, links); err != nil { // as found, for the next round
			t.Fatal(err)
		}
	}
}
