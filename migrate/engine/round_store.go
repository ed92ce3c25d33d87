package engine

import (
	"context"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Store is what this node knows of the store of the records as a whole.
type Store interface {
	// Current fails while what the records say must end, give up or delete nothing: they are
	// an old copy, or this node has not said what it holds since they were put back.
	Current(ctx context.Context) error
	// Ask is Current by the store's own word: after a record was read, it says whether that counts.
	// nil: whether all do, for what cannot be taken back. That fails while any node contradicts any of them.
	Ask(ctx context.Context, rec *nodev1.Record) error
	// Doubt tells the controller what this node holds: its records contradict that.
	Doubt(ctx context.Context) error
}

// trust fails while the records end nothing here.
func (c *core) trust(ctx context.Context) error {
	if c.Store == nil {
		return nil
	}
	return c.Store.Current(ctx)
}

// vouched fails unless the records say now that they count: a controller that was started on an
// old copy since the last heartbeat answers for records as before.
func (c *core) vouched(ctx context.Context, rec *nodev1.Record) error {
	if c.Store == nil {
		return nil
	}
	return c.Store.Ask(ctx, rec)
}

func (c *core) doubt(ctx context.Context) error {
	if c.Store == nil {
		return nil
	}
	return c.Store.Doubt(ctx)
}

// newer reports whether the VM is here under a claim that its record does not know, though that
// was read after it: the records went back in time.
func (s localVM) newer(node string) bool {
	switch s.q.GetRecord() {
	case recordOwn, recordSending, recordPrepared:
		return s.rec != nil && record.Newer(s.rec, node, s.q.GetGeneration()) && !record.Predates(s.rec, s.q.GetGeneration())
	}
	return false
}
