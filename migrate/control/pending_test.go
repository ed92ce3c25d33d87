package control

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

type pendingRecords struct {
	nodev1.RecordsService
	n   int
	err error
}

func (o *pendingRecords) Owed(context.Context, *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	return &nodev1.OwedResponse{Owed: make([]*nodev1.Owed, o.n)}, o.err
}

// The gauge has what the controller says is pending, and NaN while it does not answer.
func TestPendingGauge(t *testing.T) {
	for _, tt := range []struct {
		records pendingRecords
		want    string
	}{{pendingRecords{n: 3}, "3"}, {pendingRecords{err: errdefs.ErrUnavailable}, "NaN"}} {
		reg := prometheus.NewRegistry()
		reg.MustRegister(PendingGauge(&tt.records))
		got, err := reg.Gather()
		if err != nil || fmt.Sprint(got[0].GetMetric()[0].GetGauge().GetValue()) != tt.want {
			t.Errorf("%v, %v, want %s", got, err, tt.want)
		}
	}
}
