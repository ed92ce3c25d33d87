package engine

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// TransferMetrics are those of the moves that are open, asked for at each scrape: how many
// are in which phase, and of each live one that this controller drives how far it is. Where
// KubeVirt has such a metric the name is its own, with godwit_ in place of kubevirt_vmi_.
type TransferMetrics struct{ engine *Engine }

// NewTransferMetrics answers the collector of what the engine drives.
func NewTransferMetrics(e *Engine) *TransferMetrics { return &TransferMetrics{e} }

var (
	movesPending    = prometheus.NewDesc("godwit_migrations_in_pending_phase", "Moves that wait for a place.", nil, nil)
	movesScheduling = prometheus.NewDesc("godwit_migrations_in_scheduling_phase", "Moves whose destination is being made.",
		nil, nil)
	movesRunning = prometheus.NewDesc("godwit_migrations_in_running_phase",
		"Moves whose VM is on its way, up to their end.", nil, nil)

	ofVM           = []string{"namespace", "name"}
	movedProcessed = prometheus.NewDesc("godwit_migration_data_processed_bytes",
		"Bytes that a live move under way has sent.", ofVM, nil)
	movedRemaining = prometheus.NewDesc("godwit_migration_data_remaining_bytes",
		"Bytes that a live move under way has yet to send.", ofVM, nil)
	movedDirtyRate = prometheus.NewDesc("godwit_migration_dirty_memory_rate_bytes",
		"Bytes a second that the guest of a live move under way changes.", ofVM, nil)
	movedPass = prometheus.NewDesc("godwit_migration_pass", "Pass over the RAM of a live move under way, from 1.",
		ofVM, nil)
	movedStandstill = prometheus.NewDesc("godwit_migration_expected_downtime_seconds",
		"Standstill of a live move under way if it were paused now.", ofVM, nil)
)

// Describe implements prometheus.Collector.
func (m *TransferMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{movesPending, movesScheduling, movesRunning, movedProcessed, movedRemaining,
		movedDirtyRate, movedPass, movedStandstill} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A node that does not answer in time is left out:
// a scrape waits for none.
func (m *TransferMetrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*queryTimeout)
	defer cancel()
	all, err := m.engine.Records.List(ctx, &nodev1.ListRequest{Moves: true, Cached: true})
	if err != nil {
		return // no number is better than a wrong one
	}
	var pending, scheduling, running float64
	var asking sync.WaitGroup
	for _, rec := range all.GetRecords() {
		op := rec.GetOperation()
		if op.GetKind() != nodev1.Kind_KIND_MIGRATE {
			continue
		}
		switch op.GetPhase() {
		case nodev1.Phase_PHASE_PENDING:
			pending++
		case nodev1.Phase_PHASE_PREPARING:
			scheduling++
		default:
			running++
			if m.engine.drives(op) {
				asking.Go(func() { m.collect(ctx, op, ch) })
			}
		}
	}
	asking.Wait()
	for d, n := range map[*prometheus.Desc]float64{movesPending: pending, movesScheduling: scheduling,
		movesRunning: running} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n)
	}
}

func (m *TransferMetrics) collect(ctx context.Context, op *nodev1.Operation, ch chan<- prometheus.Metric) {
	status, err := m.engine.Status(ctx, op.GetId())
	t := status.GetTransfer()
	if err != nil || t == nil {
		return
	}
	for d, n := range map[*prometheus.Desc]float64{
		movedProcessed: float64(t.GetSentBytes()), movedRemaining: float64(t.GetLeftBytes()),
		movedDirtyRate: float64(t.GetDirtyRate()),
		movedPass:      float64(t.GetPass()), movedStandstill: t.GetDowntimeMs() / 1000,
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, op.GetVm().GetNamespace(), op.GetVm().GetId())
	}
}
