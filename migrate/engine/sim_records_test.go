package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// announcing is the loop of a node's heartbeats, by which it hears what store the records are in.
func (n *simNode) announcing() {
	for {
		n.yield()
		if n.cut > 0 || n.chance(10) {
			continue
		}
		n.rounds.loss.seen[n.name] = n.rounds.loss.time
		state, report, err := n.rounds.whole.Told(context.Background(), n.name)
		if err != nil {
			continue
		}
		told := &nodev1.AnnounceResponse{Incarnation: state.GetIncarnation(), Closed: state.GetWaiting() ||
			state.GetBehind() != nil, Report: report}
		n.yield() // and it comes late
		n.heardStore(told)
	}
}

// heard is what cmd/godwitd does with the answer.
func (n *simNode) heardStore(told *nodev1.AnnounceResponse) {
	r := n.round
	r.told, r.seen = told, max(r.seen, told.GetIncarnation())
	if told.GetReport() || told.GetIncarnation() != r.reported || told.GetIncarnation() != r.seen {
		_ = r.host.Doubt(context.Background())
	}
}

// Current implements Store.
func (h *simHost) Current(ctx context.Context) error {
	h.yield()
	if h.round.told == nil {
		return h.Ask(ctx, nil)
	}
	return h.counts(h.round.told)
}

// Ask implements Store.
func (h *simHost) Ask(_ context.Context, rec *nodev1.Record) error {
	state, err := outside(h.simNode, func(ctx context.Context, req *nodev1.StateRequest) (*nodev1.StoreState, error) {
		return stored(&h.schedule, ctx, h.rounds.whole.State, req)
	}, &nodev1.StateRequest{})
	switch {
	case err != nil:
	case rec == nil:
		err = transition.Contradicted(state)
	default:
		err = transition.Doubted(state, rec.GetVm(), rec)
	}
	if err != nil {
		return err
	}
	return h.counts(&nodev1.AnnounceResponse{Incarnation: state.GetIncarnation(), Closed: state.GetWaiting() ||
		state.GetBehind() != nil})
}

func (h *simHost) counts(now *nodev1.AnnounceResponse) error {
	if r := h.round; now.GetClosed() || now.GetIncarnation() < r.seen || now.GetIncarnation() != r.reported {
		return fmt.Errorf("the records end nothing at %s: %w", h.name, errdefs.ErrUnavailable)
	}
	return nil
}

// Doubt implements Store.
func (h *simHost) Doubt(context.Context) error {
	h.yield()
	if h.unread > 0 || h.chance(5) {
		return fmt.Errorf("report of %s: %w", h.name, errdefs.ErrUnavailable)
	}
	req := &nodev1.ReportRequest{Node: h.name, Incarnation: h.round.seen}
	if h.record != "" {
		req.Held = []*nodev1.Held{{Vm: vm, Uid: h.rounds.uid, Generation: h.journal(), Phase: h.record,
			Operation: h.ref.GetOperation(), Attempt: h.ref.GetAttempt(), Digest: h.sent}}
	}
	h.yield()
	if h.cut > 0 {
		return fmt.Errorf("report of %s: %w", h.name, errdefs.ErrUnavailable)
	}
	state, err := h.rounds.whole.Report(controller.WithPeer(context.Background(), h.name), req)
	if err == nil && len(req.GetHeld()) > 0 {
		h.rounds.said[h.name] = req.GetHeld()[0].GetGeneration()
	}
	if err == nil && state.GetIncarnation() >= h.round.seen {
		h.round.seen, h.round.reported = state.GetIncarnation(), state.GetIncarnation()
	}
	return err
}

// simRoundRecords is a node's way to the records.
type simRoundRecords struct {
	simRecords
	n *simNode
}

func (r simRoundRecords) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	rec, err := outside(r.n, r.simRecords.Get, req)
	r.n.round.host.late()
	return rec, err
}

func (r simRoundRecords) Advance(_ context.Context, req *nodev1.AdvanceRequest) (*nodev1.Record, error) {
	return outside(r.n, r.simRecords.Advance, req)
}

func (r simRoundRecords) Commit(_ context.Context, req *nodev1.CommitRequest) (*nodev1.Record, error) {
	return outside(r.n, r.simRecords.Commit, req)
}

func (r simRoundRecords) Finish(_ context.Context, req *nodev1.FinishRequest) (*nodev1.Record, error) {
	return outside(r.n, r.simRecords.Finish, req)
}

func (r simRoundRecords) Open(_ context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
	return outside(r.n, func(ctx context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Open, req)
	}, req)
}

// List may answer an old list where that is asked for: one that this node has had before, however long ago.
func (r simRoundRecords) List(_ context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	if had := r.n.round.lists; req.GetCached() && len(had) > 0 && r.n.chance(30) {
		r.n.yield()
		return proto.CloneOf(had[r.n.rng.IntN(len(had))]), nil
	}
	resp, err := outside(r.n, func(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.List, req)
	}, req)
	if err == nil && req.GetCached() {
		r.n.round.lists = append(r.n.round.lists, proto.CloneOf(resp))
	}
	return resp, err
}

// Disown may be held on its way: it lands when its caller has long given it up, or is dead.
func (r simRoundRecords) Disown(_ context.Context, req *nodev1.DisownRequest) (*nodev1.Record, error) {
	if r.n.chance(25) {
		r.s.late = append(r.s.late, func() {
			r.s.spawn("late Disown", "wire", func() {
				if rec, err := r.RecordsService.Disown(context.Background(), req); err == nil {
					r.s.trace = append(r.s.trace, fmt.Sprintf("a late Disown of %s lands: missing %v, %v at %d", r.n.name,
						rec.GetMissing(), rec.GetOwner(), rec.GetGeneration()))
				}
			})
		})
		return nil, fmt.Errorf("records, from %s: %w", r.n.name, errdefs.ErrUnavailable)
	}
	return outside(r.n, func(ctx context.Context, req *nodev1.DisownRequest) (*nodev1.Record, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Disown, req)
	}, req)
}

func (r simRoundRecords) Operation(_ context.Context, req *nodev1.OperationRequest) (*nodev1.OperationResponse, error) {
	return outside(r.n, func(ctx context.Context, req *nodev1.OperationRequest) (*nodev1.OperationResponse, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Operation, req)
	}, req)
}

func (r simRoundRecords) Trim(_ context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
	return outside(r.n, func(ctx context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Trim, req)
	}, req)
}

func (r simRoundRecords) Owed(_ context.Context, req *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	return outside(r.n, func(ctx context.Context, req *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Owed, req)
	}, req)
}

func (r simRoundRecords) Clear(_ context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	return outside(r.n, func(ctx context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
		return stored(&r.s.schedule, ctx, r.RecordsService.Clear, req)
	}, req)
}
