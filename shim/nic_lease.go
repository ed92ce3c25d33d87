package shim

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network/dhcp"
)

// leases are what guests without an agent have said of their addresses. The zero value
// has none.
type leases struct {
	mu   sync.Mutex
	has  map[dhcp.Lease]bool
	more chan struct{} // closed by the next one
}

// of reports whether a NIC has the lease that it has to have: one of IPv4 where it has such an address, as DHCPv6 is
// not what every guest asks for. l.mu is held.
func (l *leases) of(n spec.NIC) bool {
	is4 := slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
	return slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool {
		return p.Addr().Is4() == is4 && l.has[dhcp.Lease{MAC: n.MAC, Address: p}]
	})
}

// note reports whether the lease is a new one: a guest may have it confirmed as often as it likes. It never blocks: it
// is called by what moves the guest's frames.
func (l *leases) note(lease dhcp.Lease) (fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.has[lease] {
		return false
	}
	if l.has == nil {
		l.has = map[dhcp.Lease]bool{}
	}
	l.has[lease] = true
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return true
}

// forget what was said about a NIC: of one that is plugged in anew, a word about the one
// that has gone is no sign that the guest uses it.
func (l *leases) forget(mac string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.has, func(lease dhcp.Lease, _ bool) bool { return lease.MAC == mac })
}

// missing answers a NIC whose address the guest has not acknowledged.
func (l *leases) missing(nics []spec.NIC) (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range nics {
		if len(n.Addresses) > 0 && !l.of(n) {
			if l.more == nil {
				l.more = make(chan struct{})
			}
			return n.ID, l.more
		}
	}
	return "", nil
}

// wait returns when the guest has a lease on each NIC that has an address.
func (l *leases) wait(ctx context.Context, nics []spec.NIC) error {
	for {
		id, more := l.missing(nics)
		if id == "" {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("the guest has no lease on %s: %w", id, ctx.Err())
		}
	}
}
