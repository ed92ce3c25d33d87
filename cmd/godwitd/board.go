package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/store"
)

// openBoard opens what the controller knows of nodes. An index of the records that a build before
// may have written past is not read until it is made anew.
func (m *mover) openBoard(ctx context.Context, notes store.Notes, shared bool) (*cluster.Board, error) {
	board, err := cluster.Open(ctx, notes, shared)
	if err != nil {
		return nil, err
	}
	if st, ok := notes.(store.Shared); board.As(m.daemon.config.Node) && ok {
		err = st.Reindex(ctx, false)
	}
	return board, err
}

// tendBoard notes which nodes have fallen silent, and has the index of the records read for as long
// as all controllers keep it, at the controller. Each time that the nodes were read it tells so.
func (m *mover) tendBoard(ctx context.Context, read chan<- struct{}) {
	if m.board == nil {
		return
	}
	tick := time.NewTicker(cluster.Interval)
	defer tick.Stop()
	said := ""
	for {
		err := m.board.Tend(ctx)
		if m.board.Fresh() { // though a note of one could not be written
			select {
			case read <- struct{}{}:
			default: // whoever looks at them is busy
			}
		}
		if err == nil {
			err = errors.Join(m.index(ctx), m.mark.Tend(ctx))
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && said != err.Error() {
			slog.WarnContext(ctx, "what is known of the nodes is old", "error", err)
		}
		if said = ""; err != nil {
			said = err.Error()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *mover) index(ctx context.Context) error {
	st, ok := m.daemon.store.(store.Shared)
	if !ok {
		return nil
	}
	all := m.board.Indexed()
	if all && !m.board.Leads(m.daemon.config.Node, "") {
		return nil
	}
	return st.Reindex(ctx, all)
}
