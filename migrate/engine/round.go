package engine

import (
	"context"
	"errors"
	"fmt"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Round is Resume, Reconcile, Due and Deletions by one list of the records: what a node asks the
// controller for, every few seconds, for as long as nothing happens. It asks for the next Sweep too.
// Call it as Reconcile.
func (e *Engine) Round(ctx context.Context, local func() ([]*nodev1.VM, error)) error {
	resp, err := e.Records.List(ctx, &nodev1.ListRequest{Node: e.opts.Node, Moves: e.Peers != nil, Payer: e.opts.Node})
	e.mu.Lock()
	e.paid = err == nil && resp.Owes != nil && !resp.GetOwes()
	e.mu.Unlock()
	if err != nil {
		return err
	}
	all := resp.GetRecords()
	e.resume(all)
	err = e.reconcile(ctx, all, local)
	if err != nil {
		err = fmt.Errorf("reconcile: %w", err)
	}
	due := e.due(ctx, all)
	for _, rec := range all {
		e.startDeletion(rec)
	}
	return errors.Join(err, due)
}

// atRest reports whether a VM that is here is surely as its record says: nothing is to be ended or
// given back. rec was read before the shim was asked, which is enough to do nothing by; nil: there
// is none of the VM among this node's.
func (e *Engine) atRest(q *machinev1.QueryResponse, rec *nodev1.Record) bool {
	return rec != nil && rec.GetOperation() == nil && rec.GetOwner().GetNode() == e.opts.Node &&
		q.GetRecord() == recordOwn && q.GetUid() == rec.GetUid() && q.GetGeneration() == rec.GetGeneration()
}
