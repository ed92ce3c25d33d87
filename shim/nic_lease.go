package shim

import (
	"context"
	"fmt"
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
	by   map[leaseKey]netip.Prefix
	more chan struct{} // closed by the next one
}

// leaseKey is a NIC's MAC and one of the two protocols.
type leaseKey struct {
	mac string
	is4 bool
}

// leaseOf is the lease that a NIC has to have: that of IPv4 where it has such an address,
// as DHCPv6 is not what every guest asks for.
func leaseOf(n spec.NIC) leaseKey {
	is4 := slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
	return leaseKey{n.MAC, is4}
}

// note never blocks: it is called by what moves the guest's frames.
func (l *leases) note(lease dhcp.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[leaseKey]netip.Prefix{}
	}
	l.by[leaseKey{lease.MAC, lease.Address.Addr().Is4()}] = lease.Address
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// forget what was said about a NIC: of one that is plugged in anew, a word about the one
// that has gone is no sign that the guest uses it.
func (l *leases) forget(mac string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, is4 := range []bool{false, true} {
		delete(l.by, leaseKey{mac, is4})
	}
}

// missing answers a NIC whose address the guest has not acknowledged.
func (l *leases) missing(nics []spec.NIC) (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range nics {
		if len(n.Addresses) > 0 && !slices.Contains(n.Addresses, l.by[leaseOf(n)]) {
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
