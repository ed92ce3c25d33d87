package control

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// doubtsBound is how long a scrape waits for the store.
const doubtsBound = time.Second

// Doubts counts the doubts that stop records, by the node that has raised them. It is nothing while
// the store does not answer.
type Doubts struct{ Store nodev1.StoreService }

var doubtsDesc = prometheus.NewDesc("godwit_record_doubts",
	"Doubts of this node by which records do not change. Above 0 a person has to decide.", []string{"node"}, nil)

// Describe implements prometheus.Collector.
func (Doubts) Describe(to chan<- *prometheus.Desc) { to <- doubtsDesc }

// Collect implements prometheus.Collector.
func (f Doubts) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), doubtsBound)
	defer cancel()
	state, err := f.Store.State(ctx, &nodev1.StateRequest{})
	if err != nil {
		return
	}
	of := map[string]float64{}
	for _, d := range state.GetDoubts() {
		if !d.GetRefuted() {
			of[d.GetNode()]++
		}
	}
	for node, n := range of {
		to <- prometheus.MustNewConstMetric(doubtsDesc, prometheus.GaugeValue, n, node)
	}
}
