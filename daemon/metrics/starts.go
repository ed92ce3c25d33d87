// Package metrics has the figures of godwitd that no engine has: starts as the shims note them, the cache
// of snapshots, deletions that are pending in the cluster, and doubts that stop records.
package metrics

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/shim/starts"
)

// Starts counts what this node's shims have noted of starts since the daemon began.
type Starts struct {
	Reader           *starts.Reader
	Seconds, Address *prometheus.HistogramVec
	Wake             func(result string) // counts a wake that no engine has seen
}

func NewStarts(path string) (*Starts, error) {
	reader, err := starts.NewReader(path)
	if err != nil {
		return nil, err
	}
	s := &Starts{Reader: reader, Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "godwit_start_seconds", Help: "Task Start, until the guest runs or the start has failed.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
	}, []string{"mode", "failed"})}
	s.Address = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "godwit_wake_address_seconds",
		Help:    "From the NICs that a wake has plugged in to the guest's use of their addresses.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
	}, []string{"result"})
	for _, result := range []string{starts.AddressOK, starts.AddressTimeout, starts.AddressFailed} {
		s.Address.WithLabelValues(result)
	}
	for _, mode := range []string{starts.Boot, starts.Clone, starts.Restore} {
		for _, failed := range []bool{false, true} {
			s.Seconds.WithLabelValues(mode, strconv.FormatBool(failed))
		}
	}
	return s, nil
}

// Before answers by next once all that was noted up to now is counted.
func (s *Starts) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		noted, err := s.Reader.Read()
		if err != nil {
			slog.Warn("read starts", "error", err)
		}
		for _, o := range noted {
			s.count(o)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Starts) count(o starts.Observation) {
	if o.Wake != "" {
		s.Wake(o.Wake)
		return
	}
	s.Seconds.WithLabelValues(o.Mode, strconv.FormatBool(o.Failed)).Observe(o.Seconds)
	if o.Address.Result != "" {
		s.Address.WithLabelValues(o.Address.Result).Observe(o.Address.Seconds)
	}
}
