package connlimit

import "github.com/prometheus/client_golang/prometheus"

// Bounds that close a client, as they are told.
const (
	boundAll     = "all"
	boundAddress = "address"
)

// Figures are those of all ports of a program.
type Figures struct {
	closed   *prometheus.CounterVec
	unproven *prometheus.GaugeVec
}

// NewFigures registers them.
func NewFigures(registry prometheus.Registerer) (*Figures, error) {
	f := &Figures{
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "godwit_connections_closed_total",
			Help: "Clients that were closed as they came: too many had not proven who they are.",
		}, []string{"port", "bound"}),
		unproven: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "godwit_connections_unproven", Help: "Clients that have not proven yet who they are.",
		}, []string{"port"}),
	}
	for _, c := range []prometheus.Collector{f.closed, f.unproven} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}
