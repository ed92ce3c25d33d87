package control

import (
	"context"
	"maps"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// doubted is a store of which nodes say something.
type doubted struct {
	nodev1.StoreService
	doubts []*nodev1.Doubt
	err    error
}

func (d doubted) State(context.Context, *nodev1.StateRequest) (*nodev1.StoreState, error) {
	return &nodev1.StoreState{Doubts: d.doubts}, d.err
}

// The metric has the doubts that stop records, by node: none that was refuted, and nothing while the store
// does not answer.
func TestDoubts(t *testing.T) {
	doubts := []*nodev1.Doubt{{Node: "b"}, {Node: "b", Credible: true}, {Node: "b", Refuted: true}, {Node: "c"},
		{Node: "d", Refuted: true}}
	for _, c := range []struct {
		err  error
		want map[string]float64
	}{{nil, map[string]float64{"b": 2, "c": 1}}, {errdefs.ErrUnavailable, map[string]float64{}}} {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(Doubts{Store: doubted{doubts: doubts, err: c.err}})
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range all {
			for _, m := range family.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("store: %v: %v, want %v", c.err, got, c.want)
		}
	}
}
