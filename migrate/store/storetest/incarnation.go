package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// State implements store.Incarnations.
func (m *Memory) State(context.Context) (*nodev1.StoreState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return proto.CloneOf(m.state), nil
}

// Revision implements store.Incarnations.
func (m *Memory) Revision(context.Context) (*nodev1.StoreState, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return proto.CloneOf(m.state), m.revision, nil
}

// SetState implements store.Incarnations.
func (m *Memory) SetState(_ context.Context, version uint64, state *nodev1.StoreState) (*nodev1.StoreState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.state.GetVersion(); v != version {
		return nil, fmt.Errorf("the store's own state is of version %d, not %d: %w", v, version, errdefs.ErrConflict)
	}
	m.revision++
	m.state = proto.CloneOf(state)
	m.state.Version = version + 1
	return proto.CloneOf(m.state), nil
}

// Copy answers a store that holds what m holds now.
func (m *Memory) Copy() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A message that the store holds is replaced, never changed.
	c := &Memory{
		sequence: m.sequence, revision: m.revision, records: maps.Clone(m.records), operations: maps.Clone(m.operations),
		closed:  map[string][]string{},
		pending: maps.Clone(m.pending), notes: maps.Clone(m.notes), state: m.state,
	}
	for vm, ids := range m.closed {
		c.closed[vm] = slices.Clone(ids)
	}
	return c
}

// PutBack makes m hold what a copy holds, as a person who puts a store's file back does.
func (m *Memory) PutBack(old *Memory) {
	c := old.Copy()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sequence, m.revision, m.records, m.operations, m.closed, m.pending, m.notes, m.state = c.sequence, c.revision,
		c.records, c.operations, c.closed, c.pending, c.notes, c.state
}

// incarnation: what the store says of itself is durable, and changes from the version it had
// only. A change of a record that was decided under another one is a conflict.
func incarnation(t *testing.T, st store.Store, reopen func() store.Store) {
	none, err := st.State(t.Context())
	if err != nil || none.GetVersion() != 0 || none.GetIncarnation() != 0 {
		t.Fatalf("a new store: %v, %v", none, err)
	}
	rec := apply(t, st, &nodev1.Record{Vm: vm("a")}, nil)
	first, err := st.SetState(t.Context(), 0, &nodev1.StoreState{Incarnation: 7, Waiting: true, Missing: []string{"n1"}})
	if err != nil || first.GetVersion() == 0 {
		t.Fatalf("%v, %v", first, err)
	}
	for _, version := range []uint64{0, first.GetVersion() + 1} {
		if _, err := st.SetState(t.Context(), version, &nodev1.StoreState{}); !errdefs.IsConflict(err) {
			t.Errorf("version %d of %d: %v", version, first.GetVersion(), err)
		}
		if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(),
			transition.Change{Record: rec, Under: version}); !errdefs.IsConflict(err) {
			t.Errorf("a change that was decided under version %d of %d: %v", version, first.GetVersion(), err)
		}
		if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{Under: version}); !errdefs.IsConflict(
			err) {
			t.Errorf("a removal that was decided under version %d of %d: %v", version, first.GetVersion(), err)
		}
	}
	st = reopen()
	now, err := st.Load(t.Context(), vm("a"), transition.Asked{PendingDeletions: true})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "state", first, now.Store)
	same(t, "record", rec, now.Record)
	if _, err := st.Apply(t.Context(), vm("a"), rec.GetVersion(),
		transition.Change{Record: rec, Under: first.GetVersion()}); err != nil {
		t.Errorf("a change under the state that stands: %v", err)
	}
	second, err := st.SetState(t.Context(), first.GetVersion(), &nodev1.StoreState{Incarnation: 7})
	if err != nil || second.GetVersion() <= first.GetVersion() {
		t.Errorf("%v, %v", second, err)
	}
	got, err := st.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "state", second, got)
}

// revisions: each change makes the revision larger, and so does none that only asks or is refused, nor
// a restart make it smaller.
func revisions(t *testing.T, st store.Store, reopen func() store.Store) {
	last := uint64(0)
	grown := func(what string, want bool, err error) {
		t.Helper()
		state, now, rerr := st.Revision(t.Context())
		if err != nil || rerr != nil || state == nil || now < last || (now > last) != want {
			t.Fatalf("%s: revision %d after %d, %v, %v", what, now, last, err, rerr)
		}
		last = now
	}
	_, last, err := st.Revision(t.Context())
	grown("nothing", false, err)
	rec := apply(t, st, &nodev1.Record{Vm: vm("a")}, nil)
	grown("a record", true, nil)
	grown("a note", true, st.(store.Notes).Note(t.Context(), "kind", "key", []byte("value")))
	_, err = st.SetState(t.Context(), 0, &nodev1.StoreState{Incarnation: 7})
	grown("a state", true, err)
	if _, err := st.SetState(t.Context(), 0, &nodev1.StoreState{}); !errdefs.IsConflict(err) {
		t.Fatal(err)
	}
	_, err = st.List(t.Context(), "", 0)
	grown("a question", false, err)
	st = reopen()
	if _, now, err := st.Revision(t.Context()); err != nil || now < last {
		t.Fatalf("revision %d after %d: %v", now, last, err)
	}
	state, last, err := st.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{Under: state.GetVersion()})
	if _, now, rerr := st.Revision(t.Context()); err != nil || rerr != nil || now <= last {
		t.Errorf("the end of a record: revision %d after %d: %v, %v", now, last, err, rerr)
	}
}
