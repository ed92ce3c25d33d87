package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// rounds are a node's looks at the VMs that it has, and at those that its records say it has. Nothing is
// ended or given up in one without proof.
type rounds struct {
	*core

	mu       sync.Mutex
	gone     map[string]time.Time      // what waits for Options.Grace, since when: as of the last round
	seen     map[string]time.Time      // the same, of the round under way
	cleanups map[string]pendingCleanup // by VM
}

func newRounds(c *core) *rounds {
	return &rounds{core: c, gone: map[string]time.Time{}, seen: map[string]time.Time{},
		cleanups: map[string]pendingCleanup{}}
}

// Round is Resume, Reconcile, Due and Deletions by one list of the records: what a node asks the
// controller for, every few seconds, for as long as nothing happens. It asks for the next Sweep too. The list may be
// old: what is begun or ended by it asks the record itself, or names the generation that it has seen.
// Call it as Reconcile.
func (e *Engine) Round(ctx context.Context, local func() ([]*nodev1.VM, error)) error {
	resp, err := e.Records.List(ctx, &nodev1.ListRequest{Node: e.opts.Node, Moves: e.Peers != nil, Payer: e.opts.Node,
		Cached: true})
	e.retention.noteDeletions(err != nil || resp.Owes == nil || resp.GetOwes())
	if err != nil {
		return err
	}
	all := resp.GetRecords()
	e.resume(all)
	err = e.rounds.reconcile(ctx, all, local)
	if err != nil {
		err = fmt.Errorf("reconcile: %w", err)
	}
	due := e.checkpoints.due(ctx, all)
	for _, rec := range all {
		e.deletions.start(rec)
	}
	return errors.Join(err, due)
}

// atRest reports whether a VM that is here is surely as its record says: nothing is to be ended or
// given back. rec was read before the shim was asked, which is enough to do nothing by; nil: there
// is none of the VM among this node's.
func (r *rounds) atRest(q *machinev1.QueryResponse, rec *nodev1.Record) bool {
	return rec != nil && rec.GetOperation() == nil && rec.GetOwner().GetNode() == r.opts.Node &&
		q.GetRecord() == recordOwn && q.GetUid() == rec.GetUid() && q.GetGeneration() == rec.GetGeneration()
}
