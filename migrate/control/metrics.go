package control

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"godwit.dev/godwit/migrate/engine"
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
	parts.Events, parts.Steps = engine.Sinks{parts.Events, operations, moves}, []engine.Steps{phases}
	return nil
}

// measured registers what is asked at each scrape.
func (c *Controller) measured(registry prometheus.Registerer, e *engine.Engine) error {
	err := errors.Join(registry.Register(PendingGauge(c.Records)), registry.Register(engine.NewTransferMetrics(e)),
		registry.Register(Doubts{Store: c.Whole}))
	if err != nil {
		return fmt.Errorf("register metrics of the controller: %w", err)
	}
	return nil
}
