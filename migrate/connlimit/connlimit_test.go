package connlimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// port is a listener with small bounds.
type port struct {
	t *testing.T
	*listener
	registry *prometheus.Registry
	accepted chan net.Conn
}

func open(t *testing.T, all, fromAddress int) *port {
	t.Helper()
	p := &port{t: t, registry: prometheus.NewRegistry(), accepted: make(chan net.Conn)}
	figures, err := NewFigures(p.registry)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.listener = newListener(inner, "p", all, fromAddress, figures)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			p.accepted <- c
		}
	})
	t.Cleanup(func() { _ = p.Close(); accepting.Wait() })
	return p
}

// want is a client at 127.0.0.n, and its connection as the server has it; none: it was closed as it
// came.
func (p *port) want(n byte, in bool, why string) (server net.Conn) {
	p.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}
	client, err := d.DialContext(p.t.Context(), "tcp", p.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = client.Close() })
	closed := make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		closed <- err
	}()
	select {
	case server = <-p.accepted:
	case err = <-closed:
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			p.t.Fatal(err)
		}
	}
	if (server != nil) != in {
		p.t.Fatalf("%s: let in %v", why, server != nil)
	}
	return server
}

// counted are the clients that were closed, by either bound, and those that are strangers.
func (p *port) counted(all, address, unproven float64) {
	p.t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{"godwit_connections_closed_total all p": all,
		"godwit_connections_closed_total address p": address, "godwit_connections_unproven p": unproven}
	if !maps.Equal(got, want) {
		p.t.Errorf("counted %v, want %v", got, want)
	}
}

// One address has no more strangers than its share, and all have no more than there may be; who is
// known, or gone, makes room.
func TestBounds(t *testing.T) {
	p := open(t, 3, 2)
	first, second := p.want(2, true, "the first"), p.want(2, true, "the second of an address")
	p.want(2, false, "the third of it")
	third := p.want(3, true, "another address")
	p.want(4, false, "one more than there may be")
	p.counted(1, 1, 3)
	Known(first)
	p.counted(1, 1, 2)
	p.want(5, true, "after one that is known")
	if err := errors.Join(second.Close(), second.Close(), first.Close()); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	p.counted(1, 1, 2) // each counts once, however it ends
	p.want(6, true, "after one that is gone")
	Known(third)
	_ = third.Close()
	p.counted(1, 1, 2)
}

// A flood of others does not keep out who comes from where a node has come from; its own address's
// bound holds for it too.
func TestKnownAddress(t *testing.T) {
	p := open(t, 2, 2)
	Known(p.want(9, true, "a node"))
	p.want(2, true, "a stranger")
	p.want(3, true, "a stranger")
	p.want(4, false, "a stranger too many")
	p.want(9, true, "the node again")
	p.want(9, true, "the node again")
	p.want(9, false, "more of its address")
}

// What is remembered of nodes is bounded.
func TestKnownIsBounded(t *testing.T) {
	p := open(t, 1, 1)
	for n := range 2 * mostKnown {
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)
		if p.enter(from) != "" {
			t.Fatal("refused")
		}
		if p.leave(from, true); len(p.known) > mostKnown {
			t.Fatalf("%d addresses", len(p.known))
		}
	}
	if len(p.listener.from) != 0 {
		t.Errorf("%d addresses without a stranger", len(p.listener.from))
	}
}

// addr is a connection's other end.
type addr struct {
	net.Conn
	text string
}

func (a addr) RemoteAddr() net.Addr { return a }
func (addr) Network() string        { return "tcp" }
func (a addr) String() string       { return a.text }

// A client with one address of IPv6 has 2^64 of them, and they count as one.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:7": "192.0.2.1/32", "[::ffff:192.0.2.1]:7": "192.0.2.1/32", "[2001:db8::1]:7": "2001:db8::/64",
		"[2001:db8::2:1]:8": "2001:db8::/64",
		"[fe80::1%eth0]:7":  "fe80::/64", "@": "invalid Prefix",
	} {
		if got := addressOf(addr{text: text}).String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// The log has a bound too, and says what it leaves out.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		was := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
		defer slog.SetDefault(was)
		l := &LogLimit{}
		for range 100 {
			l.Warn(context.Background(), "m")
		}
		if n := strings.Count(out.String(), "\n"); n != screen {
			t.Errorf("%d lines", n)
		}
		time.Sleep(window + time.Second)
		l.Warn(context.Background(), "m")
		if !strings.HasSuffix(out.String(), "msg=m unsaid=70\n") {
			t.Errorf("%s", &out)
		}
	})
}
