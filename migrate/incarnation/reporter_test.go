package incarnation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
)

// oldStore is a store whose state the test sets, and which counts reports.
type oldStore struct {
	nodev1.StoreService
	state   *nodev1.StoreState
	err     error
	reports []*nodev1.ReportRequest
}

func (s *oldStore) State(context.Context, *nodev1.StateRequest) (*nodev1.StoreState, error) {
	return s.state, s.err
}

func (s *oldStore) Report(_ context.Context, req *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	s.reports = append(s.reports, req)
	return s.state, s.err
}

// A node ends nothing on the word of a store that waits, or that is older than one it has seen.
// Nor does it on the word of a store to which it has not reported. That also holds after a
// restart of its daemon. It reports where it is asked, and no more often.
func TestNodeTowardsAStoreThatWasPutBack(t *testing.T) {
	dir, st := t.TempDir(), &oldStore{state: &nodev1.StoreState{}}
	hold := func() ([]*nodev1.Held, error) { return []*nodev1.Held{{Uid: "u"}}, nil }
	open := func() *Reporter {
		r, err := NewReporter("a", dir, st, hold)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	hear := func(incarnation uint64, closed, report bool, reports int) {
		t.Helper()
		before := len(st.reports)
		err := r.Heard(t.Context(), &nodev1.AnnounceResponse{Incarnation: incarnation, Closed: closed, Report: report})
		if err != nil || len(st.reports) != before+reports {
			t.Fatalf("%d reports, want %d: %v", len(st.reports)-before, reports, err)
		}
	}
	current := func(want bool) {
		t.Helper()
		if err := r.Current(t.Context()); (err == nil) != want || err != nil && !errdefs.IsUnavailable(err) {
			t.Fatalf("the records are current: %v, want %v", err, want)
		}
	}
	current(true) // asks the store, having heard nothing
	st.err = errdefs.ErrNotImplemented
	current(true) // a controller of a build before this call
	st.err = errdefs.ErrUnavailable
	current(false)
	st.err = nil
	hear(0, false, false, 0)
	current(true)

	st.state = &nodev1.StoreState{Incarnation: 7, Waiting: true}
	hear(7, true, true, 1)
	current(false)
	r = open()
	current(false) // the store says that it waits
	hear(7, true, false, 0)
	current(false)
	hear(7, false, false, 0)
	current(true)
	if err := r.Ask(t.Context(), nil); !errdefs.IsUnavailable(err) { // what was heard last is old
		t.Errorf("the store waits, and its records count: %v", err)
	}

	st.state = &nodev1.StoreState{} // a copy of before
	hear(0, false, false, 1)
	if got := st.reports[len(st.reports)-1]; got.GetIncarnation() != 7 || got.GetNode() != "a" || len(got.GetHeld()) != 1 {
		t.Errorf("%v", got)
	}
	current(false)
	hear(0, true, false, 0) // it knows
	r = open()
	current(false)

	st.state = &nodev1.StoreState{Incarnation: 9}
	hear(9, false, false, 1) // this node was away
	current(true)

	r.held = func() ([]*nodev1.Held, error) { return nil, errors.New("EIO") }
	if err := r.Heard(t.Context(), &nodev1.AnnounceResponse{Incarnation: 11, Report: true}); err == nil {
		t.Error("a node that cannot read its journals has reported")
	}
	current(false)
	if err := os.WriteFile(filepath.Join(dir, "incarnation.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReporter("a", dir, st, hold); err == nil {
		t.Error("what it has seen cannot be read, and it takes any store for the newest")
	}
}

// restoring counts orders, and fails as the test says.
type restoring struct {
	oldStore
	orders [][]string
}

func (s *restoring) Restore(_ context.Context, req *nodev1.RestoreRequest) (*nodev1.StoreState, error) {
	s.orders = append(s.orders, req.GetRetire())
	return s.state, s.err
}

// An order for the start of the daemon is given once, before any client is served. While it
// fails it stands, and the daemon does not start. An order that cannot be read is never taken
// for none.
func TestRestoreAtStart(t *testing.T) {
	dir, st := t.TempDir(), &restoring{oldStore: oldStore{state: &nodev1.StoreState{}}}
	if err := RestoreOrdered(t.Context(), dir, st); err != nil || len(st.orders) != 0 {
		t.Fatalf("nothing is ordered: %v, %v", st.orders, err)
	}
	path, err := record.OrderedRestore{Retire: []string{"b"}}.Store(dir)
	if err != nil {
		t.Fatal(err)
	}
	st.err = errdefs.ErrInvalidArgument
	if err := RestoreOrdered(t.Context(), dir, st); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an order that is refused: %v", err)
	}
	st.err = nil
	for range 2 {
		if err := RestoreOrdered(t.Context(), dir, st); err != nil {
			t.Fatal(err)
		}
	}
	if len(st.orders) != 2 || !slices.Equal(st.orders[1], []string{"b"}) {
		t.Errorf("ordered %v", st.orders)
	}
	if err := os.WriteFile(path, []byte(`{"retire":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RestoreOrdered(t.Context(), dir, st); err == nil || len(st.orders) != 2 {
		t.Errorf("an order that cannot be read: %v", err)
	}
}

// The type is a store next to an old controller that is up for so many orders.
type beside struct {
	restoring
	up int
}

func (s *beside) Restore(ctx context.Context, req *nodev1.RestoreRequest) (*nodev1.StoreState, error) {
	if s.up--; s.up >= 0 {
		return nil, fmt.Errorf("restore: %w: %w", controller.ErrUnchecked, errdefs.ErrFailedPrecondition)
	}
	return s.restoring.Restore(ctx, req)
}

// An order for the start waits for a controller of an earlier build that was stopped. That
// controller counts as up until it was silent for long enough. The order fails while such a
// controller goes on.
func TestRestoreAtStartWaitsForOldControllers(t *testing.T) {
	for up, orders := range map[int]int{0: 1, 17: 1, 1000: 0} {
		synctest.Test(t, func(t *testing.T) {
			dir, st := t.TempDir(), &beside{restoring{oldStore: oldStore{state: &nodev1.StoreState{}}}, up}
			if _, err := (record.OrderedRestore{}).Store(dir); err != nil {
				t.Fatal(err)
			}
			err := RestoreOrdered(t.Context(), dir, st)
			if len(st.orders) != orders || (err == nil) != (orders > 0) || err != nil && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%d signs: %d orders, %v", up, len(st.orders), err)
			}
		})
	}
}

// While one node contradicts the record of any VM, nothing is deleted for good or given up at another one: the store
// may be an old copy. What ends a VM that runs goes by the doubts of that VM. A word that was refuted stops nothing.
func TestNothingIsDeletedWhileANodeContradicts(t *testing.T) {
	d := &nodev1.Doubt{Vm: &nodev1.VM{Namespace: "ns", Id: "x"}, Node: "b", Reason: "it has VM ns/x", Credible: true}
	st := &oldStore{state: &nodev1.StoreState{Doubts: []*nodev1.Doubt{d}}}
	r, err := NewReporter("a", t.TempDir(), st, func() ([]*nodev1.Held, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	err = r.Ask(t.Context(), nil)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "godwit controller retire b") {
		t.Errorf("a node contradicts: %v", err)
	}
	if err := r.Ask(t.Context(), &nodev1.Record{Vm: &nodev1.VM{Namespace: "ns", Id: "other"}}); err != nil {
		t.Errorf("of another VM: %v", err)
	}
	if err := r.Current(t.Context()); err != nil {
		t.Errorf("a round: %v", err)
	}
	d.Refuted = true
	if err := r.Ask(t.Context(), nil); err != nil {
		t.Errorf("refuted: %v", err)
	}
}

// A node that cannot write down what store it has seen reports all the same: without its report no record of the
// cluster changes. It ends nothing meanwhile, reports no more often than it is asked, and writes once it can.
func TestANodeWithoutRoomReports(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "full") // no directory: each write fails
	st := &oldStore{state: &nodev1.StoreState{Incarnation: 7}}
	r, err := NewReporter("a", dir, st, func() ([]*nodev1.Held, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	hear := func(asked bool) error {
		return r.Heard(t.Context(), &nodev1.AnnounceResponse{Incarnation: 7, Report: asked})
	}
	if err := hear(true); !errors.Is(err, os.ErrNotExist) || len(st.reports) != 1 {
		t.Fatalf("%d reports: %v", len(st.reports), err)
	}
	if err := r.Current(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("records count, and a restart of the daemon forgets it: %v", err)
	}
	if err := hear(false); !errors.Is(err, os.ErrNotExist) || len(st.reports) != 1 {
		t.Errorf("not asked: %d reports, %v", len(st.reports), err)
	}
	if err := hear(true); !errors.Is(err, os.ErrNotExist) || len(st.reports) != 2 {
		t.Errorf("asked again: %d reports, %v", len(st.reports), err)
	}
	st.state = &nodev1.StoreState{} // a copy of before
	for n := range 2 {
		err := r.Heard(t.Context(), &nodev1.AnnounceResponse{})
		if got := st.reports[len(st.reports)-1]; err != nil || len(st.reports) != 3+n || got.GetIncarnation() != 7 {
			t.Errorf("an old store: %d reports, of incarnation %d: %v", len(st.reports), got.GetIncarnation(), err)
		}
	}
	if err := r.Current(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("an old store counts: %v", err)
	}
	st.state, st.reports = &nodev1.StoreState{Incarnation: 7}, st.reports[:2]
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := hear(false); err != nil || len(st.reports) != 2 {
		t.Errorf("with room: %d reports, %v", len(st.reports), err)
	}
	if err := r.Current(t.Context()); err != nil {
		t.Error(err)
	}
}
