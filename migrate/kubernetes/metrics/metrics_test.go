package metrics

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Whatever another host may reach asks who reads.
func TestServed(t *testing.T) {
	for address, open := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, ":1": false, "0.0.0.0:1": false,
		"localhost:1": false, "10.0.0.1:1": false, "127.0.0.1": false} {
		o := Served(address, "certs")
		if o.SecureServing == open || (o.FilterProvider == nil) != open || o.BindAddress != address {
			t.Errorf("%s: secure %v, filter %v, at %q", address, o.SecureServing, o.FilterProvider != nil, o.BindAddress)
		}
	}
	if o := Served("", ""); o.BindAddress != "0" {
		t.Errorf("none: %q", o.BindAddress)
	}
}

// A program without a manager serves figures until it is told to end. Then its address is free, and they are gone.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	for range 2 {
		c := prometheus.NewGauge(prometheus.GaugeOpts{Name: "godwit_served_of_this_test", Help: "x"})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, &rest.Config{}, Served(at, ""), c) }()
		for body := ""; !strings.Contains(body, "\ngodwit_served_of_this_test 0"); {
			select {
			case err := <-ended:
				t.Fatal(err)
			default:
			}
			resp, err := http.Get("http://" + at + "/metrics")
			if err != nil {
				continue // not yet
			}
			data, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			body = string(data)
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// A program that leads twice shows its figures twice, and while it does not lead it shows none.
func TestShow(t *testing.T) {
	figures := func() prometheus.Collector {
		r := prometheus.NewRegistry()
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "godwit_of_this_test_total", Help: "x"}, []string{"a"})
		c.WithLabelValues("x").Inc()
		r.MustRegister(c)
		return r
	}
	shown := func() (n int) {
		all, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.GetName() == "godwit_of_this_test_total" {
				n = int(m.GetMetric()[0].GetCounter().GetValue())
			}
		}
		return n
	}
	for range 2 {
		hide, err := Show(figures())
		if err != nil {
			t.Fatal(err)
		}
		if shown() != 1 {
			t.Error("they are not shown")
		}
		if _, err := Show(figures()); err == nil {
			t.Error("two show the same figures")
		}
		hide()
		if shown() != 0 {
			t.Error("they are shown after the end")
		}
	}
}
