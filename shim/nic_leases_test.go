package shim

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/network/dhcp"
)

// What a guest without an agent says of its leases is waited for, not polled.
func TestLeases(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	nics := vm.spec().Clone().NICs
	nics[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}
	done := make(chan error)
	go func() { done <- vm.nic.leases.wait(t.Context(), nics) }()
	vm.nic.leases.note(dhcp.Lease{MAC: "02:00:00:00:00:09"})
	vm.nic.leases.note(dhcp.Lease{MAC: nics[0].MAC, Address: nics[0].Addresses[0]})
	w.must("wait", <-done)
	never := func(what string) {
		t.Helper()
		if err := vm.nic.leases.wait(expired(t), nics); !errdefs.IsDeadlineExceeded(err) && !errdefs.IsCanceled(err) ||
			!strings.Contains(err.Error(), "net0") {
			t.Errorf("%s: %v", what, err)
		}
	}
	old := nics[0].Addresses[0]
	nics[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.3/24")}
	never("a lease of the address before")
	nics[0].Addresses[0] = old
	w.machine.nics.lose("net0")
	_, err := vm.nic.replug(t.Context())
	w.must("plug in", err)
	never("a lease of the NIC that has gone")
	nics[0].MAC = "02:00:00:00:00:07"
	never("a lease that never comes")
}

// A guest may have its leases confirmed as often as it likes: each is news once, until its NIC goes.
func TestALeaseIsNewOnce(t *testing.T) {
	var l leases
	all := []dhcp.Lease{
		{MAC: "02:00:00:00:00:01", Address: netip.MustParsePrefix("10.0.0.2/24")},
		{MAC: "02:00:00:00:00:01", Address: netip.MustParsePrefix("fd00::2/64")},
		{MAC: "02:00:00:00:00:01", Address: netip.MustParsePrefix("fd00::3/64")},
	}
	for try, want := range []bool{true, false, false, true, false} {
		if try == 3 {
			l.forget("02:00:00:00:00:02")
			l.forget("02:00:00:00:00:01")
		}
		for _, lease := range all {
			if got := l.note(lease); got != want {
				t.Errorf("try %d: that the guest has %s is new: %t", try, lease.Address, got)
			}
		}
	}
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	t.Cleanup(cancel)
	return ctx
}
