package engine

import (
	"context"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// meanwhile are records of which something changes after they were listed. Those of a build before do not look at the
// uid of a Trim.
type meanwhile struct {
	nodev1.RecordsService
	then   func()
	before bool
}

func (m *meanwhile) Trim(ctx context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
	if m.before {
		req.Uid = ""
	}
	return m.RecordsService.Trim(ctx, req)
}

func (m *meanwhile) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	resp, err := m.RecordsService.List(ctx, req)
	if then := m.then; then != nil {
		m.then = nil
		then()
	}
	return resp, err
}

// A prune deletes what the record has given up. It takes its time, and what it saw before does not count: a VM may be
// removed meanwhile with its snapshots kept, or end anew.
func TestPruneDeletesWhatIsDecided(t *testing.T) {
	for name, c := range map[string]struct {
		start func() (*world, *Engine)
		then  func(ctx context.Context, s nodev1.RecordsService, rec *nodev1.Record) error
	}{
		"another VM of that name": {func() (*world, *Engine) {
			w := asleep(t)
			e := w.start("n1")
			e.opts.Retention.Keep = 2
			w.rounds(e, 1)
			e.opts.Retention.Keep = 1
			return w, e
		}, func(ctx context.Context, s nodev1.RecordsService, rec *nodev1.Record) error {
			_, err := s.Remove(ctx, &nodev1.RemoveRequest{Vm: vm, Uid: rec.GetUid(), Force: true})
			if err == nil {
				_, err = s.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm})
			}
			return err
		}},
		"it ended again": {func() (*world, *Engine) {
			w, e := endedVM(t, &keeper{says: nodev1.Presence_PRESENCE_NONE})
			sweeps(t, e, 1) // notes the end
			return w, e
		}, func(ctx context.Context, s nodev1.RecordsService, rec *nodev1.Record) error {
			now, err := s.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: rec.GetGeneration()})
			if err == nil {
				_, err = s.Disown(ctx, &nodev1.DisownRequest{Vm: vm, Node: "n1", Generation: now.GetGeneration()})
			}
			return err
		}},
	} {
		for _, before := range []bool{false, true} {
			w, e := c.start()
			rec, ctx := w.record(), t.Context()
			e.Records = &meanwhile{e.Records, func() {
				if err := c.then(ctx, w.records, rec); err != nil {
					t.Error(err)
				}
			}, before}
			resp, err := e.Prune(ctx, &nodev1.PruneRequest{Vm: vm})
			if err != nil || len(resp.GetPruned()) != 1 || resp.GetPruned()[0].GetError() == "" {
				t.Errorf("%s, build before %v: %v, %v", name, before, resp, err)
			}
			if len(w.dropped) > 0 {
				t.Errorf("%s, build before %v: dropped %v, which nothing has given up", name, before, w.dropped)
			}
		}
	}
}
