package schema

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

// sometimes cannot be reached.
type sometimes struct {
	served
	away bool
}

func (s *sometimes) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.away && strings.HasSuffix(req.URL.Path, "/virtualmachines.godwit.dev") {
		return nil, errors.New("away")
	}
	return s.served.RoundTrip(req)
}

// outdated are the figures of a guard by the names of schemas.
func outdated(t *testing.T, g *Guard) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(g)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return got
}

// What no look has told has no figure. A schema that lacks something, has just changed or cannot be read has 1 until a
// look finds it as it should be.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sometimes{served: served{made: time.Hour, changed: time.Hour, served: time.Hour}}
		g, err := New(&rest.Config{Host: "http://api", Transport: api, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		if got := outdated(t, g); len(got) > 0 {
			t.Errorf("before the first look: %v", got)
		}
		const name = "virtualmachines.godwit.dev"
		step := func(what string, want float64) {
			t.Helper()
			if err := g.Check(t.Context()); (err != nil) != (want == 1) {
				t.Errorf("%s: %v", what, err)
			}
			got := outdated(t, g)
			if len(got) != len(g.own) || got[name] != want {
				t.Errorf("%s: %v, want %v for %s", what, got, want, name)
			}
			for other, is := range got {
				if other != name && is != 0 {
					t.Errorf("%s: %s is %v", what, other, is)
				}
			}
		}
		step("at first", 0)
		api.away = true
		step("it cannot be read", 1)
		api.away = false
		step("it can be read again", 0)
		api.lacks, api.version = "operatingMode", "8"
		step("it lacks a field", 1)
		api.lacks, api.version = "", "9"
		step("it has just changed", 1)
		time.Sleep(Settle)
		step("it was mended", 0)
	})
}
