package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// believed is what a node knows of the store.
type believed struct {
	err    error
	doubts int
}

func (b *believed) Current(context.Context) error             { return b.err }
func (b *believed) Ask(context.Context, *nodev1.Record) error { return b.err }
func (b *believed) Doubt(context.Context) error               { b.doubts++; return nil }

// says answers a record other than the one that there is.
type says struct {
	nodev1.RecordsService
	change func(*nodev1.Record)
}

func (s says) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	rec, err := s.RecordsService.Get(ctx, req)
	if err == nil {
		rec = proto.CloneOf(rec)
		s.change(rec)
	}
	return rec, err
}

// No record that is older than its claim ends a VM that runs. Nor is it ended while the store must not be believed,
// or while it is not known whose it is. The controller is told what is here. A record that was settled after a copy
// was put back is newer than every claim of before, whatever its number.
func TestOldRecordsEndNothing(t *testing.T) {
	const n = 1_800_000_000
	elsewhere := &nodev1.Owner{Node: "n2"}
	for name, c := range map[string]struct {
		change func(*nodev1.Record)
		err    error
		doubts int
		ends   bool
	}{
		"older, of another node": {func(r *nodev1.Record) { r.Owner, r.Generation = elsewhere, 0 }, nil, 1, false},
		"older, asleep": {func(r *nodev1.Record) {
			r.Owner, r.Generation = &nodev1.Owner{Digest: "sha256:a"}, 0
		}, nil, 1, false},
		"the same, of another": {func(r *nodev1.Record) { r.Owner, r.Generation = elsewhere, 1 }, nil, 1, false},
		"the same, unowned":    {func(r *nodev1.Record) { r.Owner, r.Generation = nil, 1 }, nil, 1, false},
		"the same, settled": {func(r *nodev1.Record) {
			r.Owner, r.Generation, r.Incarnation = elsewhere, 1, n
		}, nil, 0, true},
		"newer, not believed": {func(r *nodev1.Record) {
			r.Owner, r.Generation = elsewhere, 9
		}, errdefs.ErrUnavailable, 0, false},
		"newer, rivals": {func(r *nodev1.Record) {
			r.Owner, r.Generation, r.Rivals = elsewhere, 9, true
		}, nil, 0, false},
		"settled, a lower number": {func(r *nodev1.Record) {
			r.Owner, r.Generation, r.Incarnation = elsewhere, 1, n
		}, nil, 0, true},
		"newer":          {func(r *nodev1.Record) { r.Owner, r.Generation = elsewhere, 9 }, nil, 0, true},
		"newer, unowned": {func(r *nodev1.Record) { r.Owner, r.Generation = nil, 9 }, nil, 0, true},
		"settled, and a person is to decide": {func(r *nodev1.Record) {
			r.Owner, r.Generation, r.Incarnation, r.Kept = nil, record.Floor(n)+3, n, &nodev1.Kept{Node: "n3"}
		}, nil, 0, false},
		"lifted": {func(r *nodev1.Record) {
			r.Owner, r.Generation, r.Incarnation = elsewhere, record.Floor(n)+3, n
		}, nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.mu.Lock()
			w.gens["n1"] = 1
			w.mu.Unlock()
			e := w.start("n1")
			b := &believed{}
			e.Store, e.Records = b, says{e.Records, c.change}
			b.err, e.opts.Grace = c.err, 0
			err := e.rounds.stray(t.Context(), vm, nil)
			if ended := slices.Contains(w.calls(), "EndSuperseded"); ended != c.ends || b.doubts != c.doubts {
				t.Errorf("ended %v, told %d times: %v", ended, b.doubts, err)
			}
			if c.err != nil {
				if err := e.Reconcile(t.Context(), at(true)); !errdefs.IsUnavailable(err) {
					t.Errorf("a round: %v", err)
				}
			}
		})
	}
}

// backSince is a store that was put back since the last heartbeat.
type backSince struct{ believed }

func (backSince) Current(context.Context) error { return nil }

// TestScanAsksTheStore shows that a scan deletes nothing by records that were put back since the node's
// last heartbeat: what they do not name may be all there is of the VM.
func TestScanAsksTheStore(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	now := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return now }
	e.opts.Retention = Retention{Keep: 1, Grace: time.Hour, Scans: true}
	w.tags = []Leftover{{Tag: "left", Digest: "sha256:1", UID: w.record().GetUid(), Operation: "x"}}
	b := &backSince{believed{err: errdefs.ErrUnavailable}}
	e.Store = b
	for range 3 {
		if err := e.Scan(t.Context()); err != nil && !errdefs.IsUnavailable(err) || len(w.dropped) > 0 {
			t.Fatalf("%v, dropped %v", err, w.dropped)
		}
		now = now.Add(2 * time.Hour)
	}
	b.err = nil
	if err := e.Scan(t.Context()); err != nil || len(w.dropped) != 1 {
		t.Errorf("%v, dropped %v", err, w.dropped)
	}
}

// Records that do not count free no file of a layout: they may not know of a capture that is under
// way, nor of a VM that was made after the copy.
func TestOldRecordsFreeNothing(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	for _, scans := range []bool{true, false} {
		e.opts.Retention = Retention{Keep: 1, Grace: time.Minute, Scans: scans}
		for _, err := range []error{errdefs.ErrUnavailable, nil} {
			e.Store, e.retention.scan.next = &believed{err: err}, time.Time{}
			w.forsaken, w.files = []string{"unknown"}, 3
			got := e.Scan(t.Context())
			if kept := len(w.forsaken) == 1 && w.files == 3; kept != (err != nil) || errdefs.IsUnavailable(got) != (err != nil) {
				t.Errorf("scans %t, records %v: %v and %d files are left: %v", scans, err, w.forsaken, w.files, got)
			}
		}
	}
}
