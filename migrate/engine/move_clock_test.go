package engine

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// skewed are records of a controller whose clock is another one's.
type skewed struct {
	nodev1.RecordsService
	by time.Duration
}

func (s skewed) shift(rec *nodev1.Record, err error) (*nodev1.Record, error) {
	if op := rec.GetOperation(); op != nil {
		op.OpenedUnixNano += s.by.Nanoseconds()
	}
	return rec, err
}

func (s skewed) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	return s.shift(s.RecordsService.Get(ctx, req))
}

func (s skewed) Open(ctx context.Context, req *nodev1.OpenRequest) (*nodev1.Record, error) {
	return s.shift(s.RecordsService.Open(ctx, req))
}

func (s skewed) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	all, err := s.RecordsService.List(ctx, req)
	for _, rec := range all.GetRecords() {
		_, _ = s.shift(rec, nil)
	}
	return all, err
}

// An operation has the time that it may take, no more and no less. This holds also on a node whose clock is hours
// away from the controller's. An operation that a restarted engine takes up has no more than that.
func TestClocksOfNodesDiffer(t *testing.T) {
	for name, by := range map[string]time.Duration{"early": -5 * time.Hour, "late": 5 * time.Hour} {
		for _, o := range orders[:3] {
			t.Run(o.name+", the node's clock is "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := o.start(t)
					e := w.engine(o.node)
					defer e.Close()
					e.opts.Operation, e.Records = boundOperation, skewed{e.Records, by}
					if err := o.give(w, e, "op"); err != nil {
						t.Fatal(err)
					}
					if op := w.settle("op"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED {
						t.Errorf("%s: %s", op.GetPhase(), op.GetReason())
					}
				})
			})
		}
		t.Run("a stall, the node's clock is "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.hangs("Capture", true)
				e := w.engine("n1")
				e.opts.Operation, e.Records = boundOperation, skewed{e.Records, by}
				begun := time.Now()
				if err := w.hibernate(e, "h"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(boundOperation / 3)
				e.Close()
				e = w.engine("n1")
				defer e.Close()
				e.opts.Operation, e.Records = boundOperation, skewed{e.Records, by}
				if err := e.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				op := w.settle("h")
				if took := time.Since(begun); op.GetPhase() != nodev1.Phase_PHASE_FAILED || took > 2*boundOperation ||
					!strings.Contains(op.GetReason(), "deadline") {
					t.Errorf("%s after %v: %s", op.GetPhase(), took, op.GetReason())
				}
				w.check("h")
			})
		})
	}
}
