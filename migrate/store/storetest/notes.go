package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/migrate/store"
)

// notable is the store as one of notes, which every store of a controller is.
func notable(t *testing.T, st store.Store) store.Notes {
	t.Helper()
	n, ok := st.(store.Notes)
	if !ok {
		t.Fatalf("%T keeps no notes", st)
	}
	return n
}

func note(t *testing.T, n store.Notes, kind, key, value string) {
	t.Helper()
	if err := n.Note(t.Context(), kind, key, []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// noted compares what is noted after a key with pairs of key and value.
func noted(t *testing.T, n store.Notes, kind, after string, want ...string) {
	t.Helper()
	all, err := n.Notes(t.Context(), kind, after)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range all {
		got = append(got, one.Key, string(one.Value))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notes of %s after %q (-want +got):\n%s", kind, after, diff)
	}
	for i := 0; i < min(len(want), 20); i += 2 {
		if value, there, err := n.NoteOf(t.Context(), kind, want[i]); err != nil || !there || string(value) != want[i+1] {
			t.Errorf("note %s %s: %q, there %v, %v", kind, want[i], value, there, err)
		}
	}
	for _, key := range []string{after, "none"} {
		value, there, err := n.NoteOf(t.Context(), kind+"x", key)
		if err != nil || there || len(value) > 0 {
			t.Errorf("note %sx %q, which is none: %q, there %v, %v", kind, key, value, there, err)
		}
	}
}

// notes: the last value stands, for the next process too; a nil one removes it.
func notes(t *testing.T, st store.Store, reopen func() store.Store) {
	n := notable(t, st)
	noted(t, n, "node", "")
	note(t, n, "node", "b", "1")
	note(t, n, "node", "a", "2")
	note(t, n, "node", "c", "3")
	note(t, n, "node", "b", "4")
	n = notable(t, reopen())
	noted(t, n, "node", "", "a", "2", "b", "4", "c", "3")
	noted(t, n, "node", "a", "b", "4", "c", "3")
	noted(t, n, "node", "aa", "b", "4", "c", "3")
	noted(t, n, "node", "c")
	for range 2 { // what is not there is removed
		if err := n.Note(t.Context(), "node", "b", nil); err != nil {
			t.Fatal(err)
		}
	}
	noted(t, n, "node", "", "a", "2", "c", "3")
}

// notesApart: kinds whose names begin alike are two, and no note is a record. More than a
// store reads at once come in order.
func notesApart(t *testing.T, st store.Store, _ func() store.Store) {
	n := notable(t, st)
	note(t, n, "node", "x", "node")
	note(t, n, "nodes", "x", "nodes")
	noted(t, n, "node", "", "x", "node")
	noted(t, n, "nodes", "", "x", "nodes")
	if all, err := st.List(t.Context(), "", 0); err != nil || len(all) != 0 {
		t.Errorf("records: %v, %v", all, err)
	}
	const many = 1203
	var want []string
	for i := range many {
		key := fmt.Sprintf("%06d", i)
		want = append(want, key, key)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < many; i += 8 {
				if err := n.Note(t.Context(), "event", want[2*i], []byte(want[2*i])); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	noted(t, n, "event", "", want...)
	noted(t, n, "event", want[2*99], want[2*100:]...)
}

// newNotes: of many that make one note, one does, and its value stands until it is removed.
func newNotes(t *testing.T, st store.Store, _ func() store.Store) {
	n := notable(t, st)
	for round := range 2 {
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = n.NoteNew(t.Context(), "event", "1", fmt.Appendf(nil, "%d-%d", round, i)) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner < 0:
				winner = i
			case err == nil:
				t.Errorf("%d and %d made the same note", winner, i)
			case !errdefs.IsAlreadyExists(err):
				t.Errorf("loser %d: %v", i, err)
			}
		}
		noted(t, n, "event", "", "1", fmt.Sprintf("%d-%d", round, winner))
		if err := n.Note(t.Context(), "event", "1", nil); err != nil {
			t.Fatal(err)
		}
	}
}
