package cluster

import (
	"context"
	"log/slog"
	"time"

	"godwit.dev/godwit/migrate/store"
)

// OpenFor opens the state for controller self. An index of the records that a build before may have
// written past is not read until it is made anew.
func OpenFor(ctx context.Context, notes store.Notes, shared bool, self string) (*State, error) {
	state, err := Open(ctx, notes, shared)
	if err != nil {
		return nil, err
	}
	if st, ok := notes.(store.Shared); state.SetSelf(self) && ok {
		err = st.Reindex(ctx, false)
	}
	return state, err
}

// Keep notes which nodes have fallen silent, until ctx ends, and does more after each round. Each time
// that the nodes were read it tells so.
func (b *State) Keep(ctx context.Context, read chan<- struct{}, more func(context.Context) error) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	said := ""
	for {
		err := b.Maintain(ctx)
		if b.Fresh() { // though a note of one could not be written
			select {
			case read <- struct{}{}:
			default: // the one that looks at them is busy
			}
		}
		if err == nil {
			err = more(ctx)
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

// Index has the index of the records read for as long as all controllers keep it. A store that is not
// shared has none to keep.
func (b *State) Index(ctx context.Context, records store.Store, self string) error {
	st, ok := records.(store.Shared)
	if !ok {
		return nil
	}
	all := b.Indexed()
	if all && !b.Leads(self, "") {
		return nil
	}
	return st.Reindex(ctx, all)
}
