//go:build integration

package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// watchBound is far above what the API server needs to refuse.
const watchBound = 20 * time.Second

var errEnough = errors.New("enough")

// Each change after a number is told once and in order, by a watch that began before it and by one that begins later.
func TestWatch(t *testing.T) {
	st, again := open(t, nil)
	if _, err := st.Apply(t.Context(), vm("b"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("b")}}); err != nil {
		t.Fatal(err)
	}
	_, from, err := st.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const changes = 20
	told := make(chan []uint64, 1)
	go func() { told <- generations(t, again(), from, changes) }()
	rec := &nodev1.Record{Vm: vm("a")}
	for i := range changes {
		rec.Generation = uint64(i + 1)
		if rec, err = st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
	}
	var want []uint64
	for i := range changes {
		want = append(want, uint64(i+1))
	}
	if got := <-told; !slices.Equal(got, want) {
		t.Errorf("told while it happened: %v", got)
	}
	if got := generations(t, again(), from, changes); !slices.Equal(got, want) {
		t.Errorf("told afterwards: %v", got)
	}
}

// generations answers those of the next changes after a number that have a record.
func generations(t *testing.T, st *store.Store, from uint64, n int) (all []uint64) {
	last := from
	err := st.Watch(t.Context(), from, func(ev store.Event) error {
		if ev.Number <= last {
			t.Errorf("event %d after %d", ev.Number, last)
		}
		last = ev.Number
		if ev.Record != nil {
			all = append(all, ev.Record.GetGeneration())
		}
		if len(all) == n {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Error(err)
	}
	return all
}

// A number that etcd has compacted is out of range: the API server is started anew, so its cache knows no more.
func TestWatchAfterCompaction(t *testing.T) {
	st, _ := open(t, nil)
	_, old, err := st.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rec, err := st.Apply(t.Context(), vm("a"), 0, transition.Change{Record: &nodev1.Record{Vm: vm("a")}})
	if err == nil {
		_, err = st.Apply(t.Context(), vm("a"), rec.GetVersion(), transition.Change{Record: rec})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, now, err := st.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server.KillAPI()
	if err := errors.Join(server.Compact(t.Context(), now), server.StartAPI(t.Context())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), watchBound)
	defer cancel()
	err = st.Watch(ctx, old, func(ev store.Event) error { return errEnough })
	if !errdefs.IsOutOfRange(err) {
		t.Errorf("a watch from %d, compacted at %d: %v", old, now, err)
	}
}
