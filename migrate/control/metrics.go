package control

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// measure registers what the engine of a controller without VMs counts, and has the engine tell it.
func measure(registry prometheus.Registerer, parts *engine.Parts) error {
	operations, err := engine.NewMetrics(registry)
	if err != nil {
		return err
	}
	moves, err := engine.NewMoveMetrics(registry, parts.Records)
	if err != nil {
		return err
	}
	phases, err := engine.NewPhaseMetrics(registry)
	if err != nil {
		return err
	}
	if err := registry.Register(PendingGauge(parts.Records)); err != nil {
		return fmt.Errorf("register metrics of pending deletions: %w", err)
	}
	parts.Events, parts.Steps = engine.Sinks{parts.Events, operations, moves}, []engine.Steps{phases}
	return nil
}

// MeasureMoves registers what each controller is asked at a scrape: the moves that its engine drives, and the doubts
// that stop records.
func MeasureMoves(registry prometheus.Registerer, e *engine.Engine, whole nodev1.StoreService) error {
	err := errors.Join(registry.Register(engine.NewTransferMetrics(e)), registry.Register(Doubts{Store: whole}))
	if err != nil {
		return fmt.Errorf("register metrics of the controller: %w", err)
	}
	return nil
}
