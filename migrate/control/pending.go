package control

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// pendingBound is how long a scrape waits for the controller.
const pendingBound = time.Second

// PendingGauge counts, when it is asked, the deletions that are pending in the whole cluster;
// while the controller does not answer it is NaN.
func PendingGauge(records nodev1.RecordsService) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "godwit_cleanup_pending", Help: "Snapshots of the cluster whose deletion is decided and not done.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), pendingBound)
		defer cancel()
		resp, err := records.Owed(ctx, &nodev1.OwedRequest{})
		if err != nil {
			return math.NaN()
		}
		return float64(len(resp.GetOwed()))
	})
}
