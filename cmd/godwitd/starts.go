package main

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/shim/starts"
)

// startTimes counts what this node's shims have noted of starts since the daemon began.
type startTimes struct {
	reader           *starts.Reader
	seconds, address *prometheus.HistogramVec
	wake             func(result string) // counts a wake that no engine has seen
}

func newStartTimes(path string) (*startTimes, error) {
	reader, err := starts.NewReader(path)
	if err != nil {
		return nil, err
	}
	s := &startTimes{reader: reader, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "godwit_start_seconds", Help: "Task Start, until the guest runs or the start has failed.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
	}, []string{"mode", "failed"})}
	s.address = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "godwit_wake_address_seconds", Help: "From the NICs that a wake has plugged in to the guest's use of their addresses.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
	}, []string{"result"})
	for _, result := range []string{starts.AddressOK, starts.AddressTimeout, starts.AddressFailed} {
		s.address.WithLabelValues(result)
	}
	for _, mode := range []string{starts.Boot, starts.Clone, starts.Restore} {
		for _, failed := range []bool{false, true} {
			s.seconds.WithLabelValues(mode, strconv.FormatBool(failed))
		}
	}
	return s, nil
}

// before answers by next once all that was noted up to now is counted.
func (s *startTimes) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		noted, err := s.reader.Read()
		if err != nil {
			slog.Warn("read starts", "error", err)
		}
		for _, o := range noted {
			s.count(o)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *startTimes) count(o starts.Observation) {
	if o.Wake != "" {
		s.wake(o.Wake)
		return
	}
	s.seconds.WithLabelValues(o.Mode, strconv.FormatBool(o.Failed)).Observe(o.Seconds)
	if o.Address.Result != "" {
		s.address.WithLabelValues(o.Address.Result).Observe(o.Address.Seconds)
	}
}
