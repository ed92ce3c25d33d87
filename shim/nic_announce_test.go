package shim

import (
	"net/netip"
	"testing"
)

// A VM that comes with its NIC and its address is announced once, as soon as it runs. One whose guest has to learn
// another address first is announced after that.
func TestAnnounced(t *testing.T) {
	for name, c := range map[string]struct {
		comes func(*testing.T) *world
		early bool // before its guest is known
	}{
		"boots": {comes: func(t *testing.T) *world { return newWorld(t).running() }},
		"wakes": {func(t *testing.T) *world { return newWorld(t).asleep() }, true},
		"wakes at another address": {func(t *testing.T) *world {
			w := newWorld(t).asleep()
			w.links[0].NIC.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.77/24")}
			return w
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.comes(t)
			if name == "boots" { // its NIC was never anywhere else
				if n := w.net.told.Load(); n != 0 {
					t.Errorf("announced %d times", n)
				}
				return
			}
			w.net.told.Store(0)
			w.at("restored", func() error {
				if early := eventually(func() bool {
					return w.net.told.Load() > 0 || !c.early
				}) && w.net.told.Load() > 0; early != c.early {
					t.Errorf("announced before its guest is known: %t", early)
				}
				return nil
			})
			w.running()
			if !eventually(func() bool { return w.net.told.Load() == 1 }) {
				t.Errorf("announced %d times", w.net.told.Load())
			}
		})
	}
}

// A namespace that is the VM's alone is made for a guest before a VM comes, which may still run elsewhere. A VM that
// boots has it as any container.
func TestComesToASilentNamespace(t *testing.T) {
	w := newWorld(t).running()
	if w.net.forGuest != "" {
		t.Errorf("a boot in %s", w.net.forGuest)
	}
	w.sleeps().running()
	if netns := w.journal().NetNS; w.net.forGuest != netns || netns == "" {
		t.Errorf("a wake in %q, its namespace is %q", w.net.forGuest, netns)
	}
}

// A VM that is about to be sent says where it is: the network may have heard otherwise from the destination.
func TestSourceAnnounces(t *testing.T) {
	w := moving(t)
	w.net.told.Store(0)
	_, err := w.send()
	w.must("send", err)
	if !eventually(func() bool { return w.net.told.Load() == 1 }) {
		t.Errorf("announced %d times", w.net.told.Load())
	}
}
