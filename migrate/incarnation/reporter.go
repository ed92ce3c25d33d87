// Package incarnation is how a node and a controller notice that the store of the records was put back
// from an old copy. A node remembers the highest incarnation that it has seen (Reporter), a controller
// how far its store was (Watermark). Neither believes a store that is older.
package incarnation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/internal/turn"
	"godwit.dev/godwit/migrate/transition"
)

// Reporter is this node towards a store of the records that may be put back from a copy: it
// remembers the newest incarnation that it has seen, and tells what the node holds.
type Reporter struct {
	node  string
	path  string // of what is remembered
	store nodev1.StoreService
	held  func() ([]*nodev1.Held, error)

	writing turn.Turn // of who makes known durable

	mu    sync.Mutex
	known remembered
	seen  uint64                   // as in known, written down or not
	told  uint64                   // the incarnation to which this process has reported
	now   *nodev1.AnnounceResponse // the last answer to a heartbeat; nil: none yet
}

// remembered is on the disk: it is there after a restart of the daemon.
type remembered struct {
	Seen     uint64 `json:"seen"`     // the highest incarnation of the store
	Reported uint64 `json:"reported"` // the one to which this node said what it holds
}

// NewReporter reads what is remembered.
func NewReporter(node, dir string, store nodev1.StoreService, held func() ([]*nodev1.Held, error)) (*Reporter, error) {
	r := &Reporter{node: node, path: filepath.Join(dir, "incarnation.json"), store: store, held: held,
		writing: turn.New()}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r.known)
		r.seen = r.known.Seen
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, which says what store of records this node has seen (without it the node takes "+
			"any store for the newest): %w", r.path, err)
	}
	return r, nil
}

// Heard takes the answer to a heartbeat. It reports if the answer asks for that, or if the node
// has not seen this store before. A disk that takes no write keeps no report back: others wait for it.
func (r *Reporter) Heard(ctx context.Context, resp *nodev1.AnnounceResponse) error {
	r.mu.Lock()
	r.now = resp
	incarnation := resp.GetIncarnation()
	r.seen = max(r.seen, incarnation)
	known, seen, told := r.known, r.seen, r.told
	r.mu.Unlock()
	var unwritten error
	if incarnation > known.Seen {
		known, unwritten = r.remember(ctx, remembered{Seen: incarnation})
	}
	switch {
	case !resp.GetReport() && incarnation == known.Reported && incarnation == seen,
		incarnation < seen && resp.GetClosed(): // it knows
		return unwritten
	case !resp.GetReport() && told > 0 && incarnation == told && incarnation == seen: // what is left is to write it down
		_, err := r.remember(ctx, remembered{Seen: told, Reported: told})
		return err
	}
	return errors.Join(unwritten, r.Doubt(ctx))
}

// Doubt implements engine.Store.
func (r *Reporter) Doubt(ctx context.Context) error {
	held, err := r.held()
	if err != nil {
		return fmt.Errorf("report what this node holds: %w", err)
	}
	r.mu.Lock()
	known, seen := r.known, r.seen
	r.mu.Unlock()
	state, err := r.store.Report(ctx, &nodev1.ReportRequest{Node: r.node, Incarnation: seen, Held: held})
	if err != nil {
		return fmt.Errorf("report what this node holds: %w", err)
	}
	if n := state.GetIncarnation(); n >= seen && n != known.Reported {
		r.mu.Lock()
		r.seen, r.told = max(r.seen, n), max(r.told, n)
		r.mu.Unlock()
		_, err = r.remember(ctx, remembered{Seen: n, Reported: n})
	}
	return err
}

// Current implements engine.Store.
func (r *Reporter) Current(ctx context.Context) error {
	r.mu.Lock()
	now := r.now
	r.mu.Unlock()
	if now == nil {
		return r.ask(ctx, func(*nodev1.StoreState) error { return nil })
	}
	return r.counts(now)
}

// Ask implements engine.Store.
func (r *Reporter) Ask(ctx context.Context, rec *nodev1.Record) error {
	if rec == nil {
		return r.ask(ctx, transition.Contradicted)
	}
	return r.ask(ctx, func(state *nodev1.StoreState) error { return transition.Doubted(state, rec.GetVm(), rec) })
}

// ask is counts by the store's own word, where nothing else speaks against it.
func (r *Reporter) ask(ctx context.Context, against func(*nodev1.StoreState) error) error {
	state, err := r.store.State(ctx, &nodev1.StateRequest{})
	if errdefs.IsNotImplemented(err) { // a controller before this call
		err = nil
	}
	if err == nil {
		err = against(state)
	}
	if err != nil {
		return err
	}
	return r.counts(&nodev1.AnnounceResponse{Incarnation: state.GetIncarnation(), Closed: state.GetWaiting() ||
		state.GetBehind() != nil})
}

// counts says why the records do not count, by what the controller said of their store.
func (r *Reporter) counts(now *nodev1.AnnounceResponse) error {
	r.mu.Lock()
	known, seen := r.known, r.seen
	r.mu.Unlock()
	wrong := ""
	switch {
	case now.GetIncarnation() < seen:
		wrong = fmt.Sprintf("the records are of incarnation %d, this node has seen %d: they are an old copy",
			now.GetIncarnation(), seen)
	case now.GetClosed():
		wrong = "the store of the records was put back from a copy (godwit controller status)"
	case now.GetIncarnation() != known.Reported:
		wrong = "this node has not said what it holds since the records were put back"
	default:
		return nil
	}
	return fmt.Errorf("%s: nothing is ended on their word: %w", wrong, errdefs.ErrUnavailable)
}

// remember makes durable what is newer than what is known, and answers what is known then. Another call may have
// learned more while the store or the disk was waited for: that stays.
func (r *Reporter) remember(ctx context.Context, news remembered) (remembered, error) {
	if err := r.writing.Take(ctx); err != nil {
		return remembered{}, fmt.Errorf("remember the store's incarnation: %w", err)
	}
	defer r.writing.Give()
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	newest := remembered{Seen: max(known.Seen, news.Seen), Reported: max(known.Reported, news.Reported)}
	if newest == known {
		return known, nil
	}
	data, err := json.Marshal(newest)
	if err != nil {
		return known, err
	}
	if err := durable.WriteFile(r.path, data, 0o600); err != nil {
		return known, fmt.Errorf("remember the store's incarnation: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = newest
	return newest, nil
}
