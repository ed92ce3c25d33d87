// Package connlimit bounds the connections of clients that have not proven who they are: in all,
// and from one address. One more is closed as it comes, and counted. A client that has proven
// who it is counts no more, so a flood takes nothing from the connections of the cluster.
package connlimit

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// Bounds of a port. A node has a handful of connections, and all nodes come at once when a
// controller was started again.
const (
	MostOfAll     = 512
	MostOfAddress = 64
)

// mostKnown addresses are remembered. Then the list begins anew, which costs nothing while there is
// no flood.
const mostKnown = 4096

// Listen lets clients of inner through. port is its name in the log and in the figures.
func Listen(inner net.Listener, port string, figures *Figures) net.Listener {
	return newListener(inner, port, MostOfAll, MostOfAddress, figures)
}

// Known says that the client of c has proven who it is. c may be TLS.
func Known(c net.Conn) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	if g, ok := c.(*conn); ok {
		g.leave(true)
	}
}

type listener struct {
	net.Listener
	port             string
	all, fromAddress int // at most
	figures          *Figures

	mu        sync.Mutex
	strangers int
	from      map[netip.Prefix]int
	known     map[netip.Prefix]bool // where nodes have come from: what others do in all is not held against them
	lines     LogLimit
}

func newListener(inner net.Listener, port string, all, fromAddress int, figures *Figures) *listener {
	return &listener{
		Listener: inner, port: port, all: all, fromAddress: fromAddress, figures: figures,
		from: map[netip.Prefix]int{}, known: map[netip.Prefix]bool{}, lines: LogLimit{Most: 1},
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, limit: l, from: addressOf(raw)}
		bound := l.enter(c.from)
		if bound == "" {
			return c, nil
		}
		l.refuse(c.from, bound)
		_ = raw.Close()
	}
}

// addressOf is where a client comes from. A client with one address of IPv6 has all of its
// network.
func addressOf(c net.Conn) netip.Prefix {
	addr, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := addr.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	from, _ := ip.Prefix(bits)
	return from
}

// enter counts one more stranger, or answers the bound that this would break.
func (l *listener) enter(from netip.Prefix) (bound string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.from[from] >= l.fromAddress:
		return boundAddress
	case l.strangers >= l.all && !l.known[from]:
		return boundAll
	}
	l.strangers++
	l.from[from]++
	l.figures.unproven.WithLabelValues(l.port).Set(float64(l.strangers))
	return ""
}

func (l *listener) leave(from netip.Prefix, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers--
	if l.from[from]--; l.from[from] == 0 {
		delete(l.from, from)
	}
	if known {
		if len(l.known) >= mostKnown {
			clear(l.known)
		}
		l.known[from] = true
	}
	l.figures.unproven.WithLabelValues(l.port).Set(float64(l.strangers))
}

// refuse counts each client that was closed; the log has one of them a minute.
func (l *listener) refuse(from netip.Prefix, bound string) {
	l.figures.closed.WithLabelValues(l.port, bound).Inc()
	l.lines.Warn(context.Background(), "connection closed: too many clients have not proven who they are", "port", l.port,
		"from", from.String(), "bound", bound)
}
