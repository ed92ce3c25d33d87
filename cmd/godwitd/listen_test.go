package main

import (
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/migrate/connlimit"
)

// Each TCP port of the daemon bounds its unknown clients: of clients that say nothing one address has its
// share, the next one is closed, and the metrics say so. A port that cannot be had is named by its key.
func TestPortsAreGated(t *testing.T) {
	d := &daemon{metrics: prometheus.NewRegistry()}
	var err error
	if d.clients, err = connlimit.NewFigures(d.metrics); err != nil {
		t.Fatal(err)
	}
	l, err := d.listenTCP("peer.listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	in := make(chan net.Conn, connlimit.MostOfAddress+1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in <- c
		}
	}()
	for range connlimit.MostOfAddress {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		defer (<-in).Close()
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || len(in) > 0 {
		t.Errorf("one too many: %v, %d let in", err, len(in))
	}
	all, err := d.metrics.Gather()
	if err != nil || len(all) != 2 || all[0].GetMetric()[0].GetCounter().GetValue() != 1 ||
		all[1].GetMetric()[0].GetGauge().GetValue() != connlimit.MostOfAddress {
		t.Errorf("metrics %v, %v", all, err)
	}
	if _, err := d.listenTCP("peer.listen", l.Addr().String()); err == nil ||
		!strings.Contains(err.Error(), "peer.listen") {
		t.Errorf("a port that is taken: %v", err)
	}
}
