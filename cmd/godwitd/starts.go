package main

import (
	"log/slog"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/shim/starts"
)

// startTimes counts the starts that this node's shims have noted since the daemon began.
type startTimes struct {
	reader  *starts.Reader
	seconds *prometheus.HistogramVec
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
	for _, mode := range []string{starts.Boot, starts.Restore} {
		for _, failed := range []bool{false, true} {
			s.seconds.WithLabelValues(mode, strconv.FormatBool(failed))
		}
	}
	return s, nil
}

// Describe implements prometheus.Collector.
func (s *startTimes) Describe(ch chan<- *prometheus.Desc) { s.seconds.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *startTimes) Collect(ch chan<- prometheus.Metric) {
	noted, err := s.reader.Read()
	if err != nil {
		slog.Warn("read starts", "error", err)
	}
	for _, o := range noted {
		s.seconds.WithLabelValues(o.Mode, strconv.FormatBool(o.Failed)).Observe(o.Seconds)
	}
	s.seconds.Collect(ch)
}
