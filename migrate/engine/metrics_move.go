package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// MoveMetrics are the controller's, of the moves that it drives.
type MoveMetrics struct {
	total, failures   *prometheus.CounterVec
	bytes             prometheus.Counter
	downtime, inDoubt prometheus.Histogram
	now               func() time.Time
	mu                sync.Mutex
	since             map[string]time.Time // by operation: when its switch-over began
}

// NewMoveMetrics registers them. records answers which moves are open.
func NewMoveMetrics(registry prometheus.Registerer, records nodev1.RecordsService) (*MoveMetrics, error) {
	m := &MoveMetrics{
		now: time.Now, since: map[string]time.Time{},
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "godwit_migration_total",
			Help: "Moves that this controller has settled."}, []string{"mode", "result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "godwit_migration_failures_total",
			Help: "Those that did not succeed, by the class of what was in the way."}, []string{"mode", "result", "reason"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "godwit_migration_bytes_total",
			Help: "Bytes that moves have sent, to the other node or to the registry."}),
		downtime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "godwit_migration_downtime_seconds", Help: "How long VMs stood still in moves that succeeded.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
		}),
		inDoubt: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "godwit_migration_in_doubt_seconds", Help: "From the order to vote to the commit or its failure.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
	}
	active := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "godwit_migration_active",
		Help: "Moves that are open, those that wait for a place among them."}, func() float64 {
		return openMoves(records)
	})
	for _, mode := range []string{moves.ModeLive, moves.ModeCold, moves.ModeAuto} {
		for _, result := range results {
			m.total.WithLabelValues(mode, result)
		}
	}
	for _, c := range []prometheus.Collector{m.total, m.failures, m.bytes, m.downtime, m.inDoubt, active} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of moves: %w", err)
		}
	}
	return m, nil
}

func openMoves(records nodev1.RecordsService) (n float64) {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	all, err := records.List(ctx, &nodev1.ListRequest{Moves: true, Cached: true})
	if err != nil {
		return 0
	}
	for _, rec := range all.GetRecords() {
		if rec.GetOperation().GetKind() == nodev1.Kind_KIND_MIGRATE {
			n++
		}
	}
	return n
}

// Event implements Events.
func (m *MoveMetrics) Event(_ context.Context, ev Event) {
	if ev.Kind != nodev1.Kind_KIND_MIGRATE {
		return
	}
	m.doubt(ev)
	result, settles := results[ev.Type]
	if !settles {
		return
	}
	if ev.Type != Succeeded {
		m.failures.WithLabelValues(ev.Op.GetMode(), result, reasonOf(ev)).Inc()
	}
	m.total.WithLabelValues(ev.Op.GetMode(), result).Inc()
	if r, err := record.ParseReceipt(ev.Op.GetReceipt()); err == nil {
		m.bytes.Add(float64(r.MovedBytes + r.PushedBytes))
	}
	if o, ok := record.ParseOutcome(ev.Op.GetOutcome()); ok && ev.Type == Succeeded {
		m.downtime.Observe(o.DowntimeMS / 1000)
	}
}

// reasonOf is why a move did not succeed, in few words: texts would make a series each.
func reasonOf(ev Event) string {
	switch {
	case ev.Op.GetCancelled():
		return "ordered"
	case ev.Op.GetClass() != "":
		return ev.Op.GetClass()
	case ev.Op.GetPhase() == nodev1.Phase_PHASE_REVERTING:
		return "fenced"
	}
	return "unknown"
}

// doubt measures the one window in which only the store knows whose the VM is.
func (m *MoveMetrics) doubt(ev Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	begun, known := m.since[ev.Operation]
	switch ev.Type {
	case Switching:
		if !known {
			m.since[ev.Operation] = m.now()
		}
	case Committed, Aborting, Succeeded, Failed, Aborted, Lost:
		if known {
			m.inDoubt.Observe(m.now().Sub(begun).Seconds())
			delete(m.since, ev.Operation)
		}
	}
}
