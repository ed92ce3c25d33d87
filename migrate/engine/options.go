package engine

import (
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Options of an engine. Zero durations and numbers take the defaults.
type Options struct {
	Node       string
	Repository func(*nodev1.Record) string // where a VM's snapshots go; empty: nowhere

	Operation time.Duration // an operation up to its commit
	Abort     time.Duration // one try of the rollback
	Step      time.Duration // one try of a step after the commit
	RetryMin  time.Duration // between tries, doubled up to RetryMax
	RetryMax  time.Duration
	Again     time.Duration // between tries of a deletion, doubled up to AgainMax
	AgainMax  time.Duration
	Grace     time.Duration // a VM is missed for so long before its record is given up
	AtOnce    int           // shims that a round asks together
	Retention Retention

	Limits   Limits        // of moves at once
	Patience time.Duration // with a node that does not answer, in one step
	Stall    time.Duration // that a transfer stands still, where a move gives up then
}

// Defaults of Options.
const (
	DefaultOperation = 10 * time.Minute
	DefaultAbort     = 30 * time.Second
	DefaultStep      = 2 * time.Minute
	DefaultRetryMin  = 100 * time.Millisecond
	DefaultRetryMax  = 10 * time.Second
	DefaultAgain     = 2 * time.Second
	DefaultAgainMax  = 5 * time.Minute
	DefaultGrace     = time.Minute
	DefaultPatience  = 20 * time.Second
	DefaultStall     = 30 * time.Second
)

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&o.Operation, DefaultOperation}, {&o.Abort, DefaultAbort}, {&o.Step, DefaultStep},
		{&o.RetryMin, DefaultRetryMin}, {&o.RetryMax, DefaultRetryMax}, {&o.Again, DefaultAgain},
		{&o.AgainMax, DefaultAgainMax}, {&o.Grace, DefaultGrace},
		{&o.Retention.Grace, DefaultLeftovers}, {&o.Patience, DefaultPatience}, {&o.Stall, DefaultStall},
	} {
		if *d.value <= 0 {
			*d.value = d.fallback
		}
	}
	if o.AtOnce <= 0 {
		o.AtOnce = AtOnce
	}
	if o.Retention.Keep <= 0 {
		o.Retention.Keep = DefaultKeep
	}
	for _, l := range []struct {
		value    *int
		fallback int
	}{{&o.Limits.All, DefaultLimits.All}, {&o.Limits.Out, DefaultLimits.Out}, {&o.Limits.In, DefaultLimits.In}} {
		if *l.value <= 0 {
			*l.value = l.fallback
		}
	}
	return o
}
