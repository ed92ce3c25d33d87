package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func open(t *testing.T, path string, shared bool) (*State, *store.Bolt) {
	t.Helper()
	st, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	b, err := Open(t.Context(), st, shared)
	if err != nil {
		t.Fatal(err)
	}
	return b, st
}

func (b *State) says(t *testing.T, info *nodev1.NodeInfo) {
	t.Helper()
	if _, err := b.Announce(t.Context(), info); err != nil {
		t.Fatal(err)
	}
}

// A node is up while it says so. What was decided about it lasts longer than the controller.
func TestNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	b, st := open(t, path, false)
	clock := time.Unix(1000, 0)
	b.now = func() time.Time { return clock }
	b.says(t, &nodev1.NodeInfo{Name: "n1", Address: "n1:1", Cordoned: true, Up: true})
	if n, err := b.Node("n1"); err != nil || !n.GetUp() || n.GetCordoned() {
		t.Fatalf("%v, %v: a node does not say itself whether it is cordoned", n, err)
	}
	if _, err := b.Cordon(t.Context(), "n1", false); err != nil {
		t.Fatal(err)
	}
	b.says(t, &nodev1.NodeInfo{Name: "n1", Address: "n1:2"})
	clock = clock.Add(silence)
	if n, _ := b.Node("n1"); n.GetUp() {
		t.Error("a silent node is up")
	}
	if _, err := b.Cordon(t.Context(), "n2", false); !errdefs.IsNotFound(err) {
		t.Errorf("unknown node: %v", err)
	}
	if _, err := b.Announce(t.Context(), &nodev1.NodeInfo{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without a name: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, path, false)
	if all := again.Nodes(); len(all) != 1 || !all[0].GetCordoned() || all[0].GetAddress() != "n1:2" {
		t.Errorf("after a restart: %v", all)
	}
}

// Of several controllers one drives what another has begun once that is gone, and no two of
// them do.
func TestLeads(t *testing.T) {
	b, st := open(t, filepath.Join(t.TempDir(), "records.db"), true)
	other, err := Open(t.Context(), st, true)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1000, 0)
	b.now, other.now = func() time.Time { return clock }, func() time.Time { return clock }
	for _, name := range []string{"a", "b", "c"} {
		other.says(t, &nodev1.NodeInfo{Name: name, Controller: true})
	}
	drivers := func(first string) (all string) {
		for _, name := range []string{"a", "b", "c"} {
			if b.Leads(name, first) {
				all += name
			}
		}
		return all
	}
	if got := drivers("b"); got != "b" {
		t.Errorf("%q drive what b has begun", got)
	}
	clock = clock.Add(silence)
	other.says(t, &nodev1.NodeInfo{Name: "a", Controller: true})
	other.says(t, &nodev1.NodeInfo{Name: "c", Controller: true})
	if got := drivers("b"); got != "ab" { // b itself does not know that it is gone
		t.Errorf("%q drive it once b is gone", got)
	}
}

// Clocks of controllers need not agree: a node that tells either of them that it lives is up for both. A node that
// has stopped to say so is up for none. No two of them lead at once.
func TestClocksOfControllersDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		states, clock := shared(t, 2), time.Unix(10_000, 0)
		states[0].now = func() time.Time { return clock }
		states[1].now = func() time.Time { return clock.Add(ahead) }
		for range 3 {
			states[0].says(t, &nodev1.NodeInfo{Name: "a", Controller: true})
			states[1].says(t, &nodev1.NodeInfo{Name: "b", Controller: true})
			for i, b := range states {
				for _, n := range b.Nodes() {
					if !n.GetUp() {
						t.Errorf("%v: node %s is not up for controller %d", ahead, n.GetName(), i)
					}
				}
			}
			if states[0].Leads("a", "b") || states[1].Leads("b", "a") || !states[0].Leads("a", "") || states[1].Leads("b", "") {
				t.Errorf("%v: two lead", ahead)
			}
			clock = clock.Add(Interval)
		}
		clock = clock.Add(silence)
		states[0].says(t, &nodev1.NodeInfo{Name: "a", Controller: true})
		if n, err := states[0].Node("b"); err != nil || n.GetUp() || !states[0].Leads("a", "b") {
			t.Errorf("%v: %v, %v: is silent", ahead, n, err)
		}
	}
}

// A clock that was set back, while the controller was away, has no silent node be up for as long.
func TestClockThatIsSetBack(t *testing.T) {
	notes, clock := storetest.NewMemory(), time.Now().Add(time.Hour)
	before, err := Open(t.Context(), notes, false)
	if err != nil {
		t.Fatal(err)
	}
	before.now = func() time.Time { return clock }
	before.says(t, &nodev1.NodeInfo{Name: "n1"})
	before.says(t, &nodev1.NodeInfo{Name: "n2"})
	b, err := Open(t.Context(), notes, false)
	if err != nil {
		t.Fatal(err)
	}
	b.says(t, &nodev1.NodeInfo{Name: "n2"})
	for name, up := range map[string]bool{"n1": false, "n2": true} {
		if n, err := b.Node(name); err != nil || n.GetUp() != up {
			t.Errorf("%v, %v: want up: %v", n, err, up)
		}
	}
}

// shared answers states of controllers that have one store.
func shared(t *testing.T, n int) (states []*State) {
	t.Helper()
	notes := storetest.NewMemory()
	for range n {
		b, err := Open(t.Context(), notes, true)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, b)
	}
	return states
}

// What one controller decides about a node stands while the node tells another one that it
// lives.
func TestCordonDuringAnnouncements(t *testing.T) {
	states := shared(t, 2)
	states[0].says(t, &nodev1.NodeInfo{Name: "n1"})
	states[1].says(t, &nodev1.NodeInfo{Name: "n1"})
	if _, err := states[1].Cordon(t.Context(), "n1", false); err != nil {
		t.Fatal(err)
	}
	for i, b := range states {
		b.says(t, &nodev1.NodeInfo{Name: "n1"})
		if n, err := b.Node("n1"); err != nil || !n.GetCordoned() {
			t.Errorf("controller %d: %v, %v", i, n, err)
		}
	}
	if _, err := states[0].Cordon(t.Context(), "n1", true); err != nil {
		t.Fatal(err)
	}
	if n, err := states[1].Node("n1"); err != nil || n.GetCordoned() {
		t.Errorf("after its end: %v, %v", n, err)
	}
}

// Several controllers write events at once: no number is given twice, and none is left out. A client that asks any
// of them hears all, in one order.
func TestEventsOfSeveralControllers(t *testing.T) {
	const each = 50
	states := shared(t, 3)
	heard := make(chan []*nodev1.MoveEvent)
	go func() { heard <- states[2].Events(t.Context(), 3*each-1, time.Minute) }()
	var wg sync.WaitGroup
	for i, b := range states {
		wg.Go(func() {
			for n := range each {
				if err := b.Append(t.Context(), &nodev1.MoveEvent{Type: fmt.Sprintf("%d-%d", i, n)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	first := states[0].Events(t.Context(), 0, 0)
	seen := map[string]bool{}
	for i, ev := range first {
		if seen[ev.GetType()] = true; ev.GetId() != uint64(i+1) {
			t.Fatalf("event %d has id %d", i, ev.GetId())
		}
	}
	if len(seen) != 3*each {
		t.Errorf("%d events of %d", len(seen), 3*each)
	}
	for i, b := range states {
		for n, ev := range b.Events(t.Context(), 0, 0) {
			if !proto.Equal(ev, first[n]) {
				t.Fatalf("controller %d tells %v, the first %v", i, ev, first[n])
			}
		}
	}
	if last := <-heard; len(last) != 1 || last[0].GetId() != 3*each {
		t.Errorf("who waited for the last hears %v", last)
	}
}

type notes = store.Notes

// lossy loses every other answer about a new note, which is stored all the same.
type lossy struct {
	notes
	calls int
}

func (l *lossy) NoteNew(ctx context.Context, kind, key string, value []byte) error {
	err := l.notes.NoteNew(ctx, kind, key, value)
	if l.calls++; l.calls%2 == 1 {
		return fmt.Errorf("the answer is lost: %w", errdefs.ErrUnavailable)
	}
	return err
}

// A store that answers late, or not, gets each event once, and no more of them than are
// remembered.
func TestEventsOnce(t *testing.T) {
	notes := &lossy{notes: storetest.NewMemory()}
	b, err := Open(t.Context(), notes, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"one", "two", "three"} {
		if err := b.Append(t.Context(), &nodev1.MoveEvent{Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	if all := b.Events(t.Context(), 0, 0); len(all) != 3 || all[2].GetType() != "three" {
		t.Errorf("%v", all)
	}
	other := shared(t, 1)[0]
	for range Remembered + 5 {
		if err := other.Append(t.Context(), &nodev1.MoveEvent{}); err != nil {
			t.Fatal(err)
		}
	}
	if stored, err := other.notes.Notes(t.Context(), kindEvent, ""); err != nil || len(stored) != Remembered ||
		stored[0].Key != eventKey(6) {
		t.Errorf("%d are stored: %v", len(stored), err)
	}
}

// overheard loses the answer about a new note, and has somebody ask for the events before the
// one who wrote it tries again.
type overheard struct {
	notes
	ask   func()
	calls int
}

func (o *overheard) NoteNew(ctx context.Context, kind, key string, value []byte) error {
	err := o.notes.NoteNew(ctx, kind, key, value)
	if o.calls++; o.calls == 1 {
		o.ask()
		return fmt.Errorf("the answer is lost: %w", errdefs.ErrUnavailable)
	}
	return err
}

// An event whose answer was lost is not written again under the next number, though its own
// has been heard of meanwhile.
func TestEventThatIsHeardFirst(t *testing.T) {
	notes := &overheard{notes: storetest.NewMemory()}
	b, err := Open(t.Context(), notes, true)
	if err != nil {
		t.Fatal(err)
	}
	notes.ask = func() { b.Events(t.Context(), 0, 0) }
	for _, kind := range []string{"one", "two"} {
		if err := b.Append(t.Context(), &nodev1.MoveEvent{Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	if all := b.Events(t.Context(), 0, 0); len(all) != 2 || all[1].GetType() != "two" {
		t.Errorf("%v", all)
	}
}

// However many controllers tell them, an operation has one first and one last event. What lies between them, and
// what is no operation's, is told as often as it happens. What a node tells of itself until it is answered is told
// once. That a wake fits no node is told once for each order.
func TestEventsOfOneOperation(t *testing.T) {
	states := shared(t, 2)
	for i, ev := range []*nodev1.MoveEvent{
		{Type: moves.Started, Operation: "m"}, {Type: moves.Started, Operation: "m"}, {Type: moves.Started, Operation: "n"},
		{Type: moves.Retrying, Operation: "m"}, {Type: moves.Retrying, Operation: "m"}, {Type: moves.NodeLost},
		{Type: moves.NodeLost},
		{Type: moves.Succeeded, Operation: "m"}, {Type: moves.Failed, Operation: "m"},
		{Type: moves.Succeeded, Operation: "m"},
		{Type: moves.Outlived, Reason: "1"}, {Type: moves.Outlived, Reason: "1"}, {Type: moves.Outlived, Reason: "2"},
		{Type: moves.NoCapacity, Operation: "w", Reason: "1"}, {Type: moves.NoCapacity, Operation: "w", Reason: "2"},
		{Type: moves.NoCapacity, Operation: "x"},
	} {
		if err := states[i%2].Append(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	for _, ev := range states[0].Events(t.Context(), 0, 0) {
		told = append(told, ev.GetType()+ev.GetOperation())
	}
	if want := []string{"MigrationStartedm", "MigrationStartedn", "Retryingm", "Retryingm", "NodeLost", "NodeLost",
		"Succeededm", "Outlived", "Outlived", "WakeNoCapacityw", "WakeNoCapacityx"}; !slices.Equal(told, want) {
		t.Errorf("told %v", told)
	}
}

// A controller that has heard nothing for longer than events are remembered takes no number
// again: what it tells is the newest.
func TestEventOfOneThatLags(t *testing.T) {
	states := shared(t, 2)
	a, b := states[0], states[1]
	for range Remembered + 10 {
		if err := a.Append(t.Context(), &nodev1.MoveEvent{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Append(t.Context(), &nodev1.MoveEvent{Type: "late"}); err != nil {
		t.Fatal(err)
	}
	if all := a.Events(t.Context(), Remembered+10, 0); len(all) != 1 || all[0].GetType() != "late" ||
		all[0].GetId() != Remembered+11 {
		t.Errorf("the other hears %v", all)
	}
}

// Events are numbered, come in order, from any of them on, and last longer than the controller.
func TestEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	b, st := open(t, path, false)
	for _, kind := range []string{"one", "two"} {
		if err := b.Append(t.Context(), &nodev1.MoveEvent{Type: kind, Id: 99}); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan []*nodev1.MoveEvent)
	go func() { got <- b.Events(t.Context(), 2, time.Minute) }()
	if err := b.Append(t.Context(), &nodev1.MoveEvent{Type: "three"}); err != nil {
		t.Fatal(err)
	}
	if all := <-got; len(all) != 1 || all[0].GetType() != "three" || all[0].GetId() != 3 {
		t.Errorf("who waits hears %v", all)
	}
	if all := b.Events(t.Context(), 3, 0); len(all) != 0 {
		t.Errorf("after the last: %v", all)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, path, false)
	if err := again.Append(t.Context(), &nodev1.MoveEvent{Type: "four"}); err != nil {
		t.Fatal(err)
	}
	all := again.Events(t.Context(), 1, 0)
	if len(all) != 3 || all[0].GetType() != "two" || all[2].GetId() != 4 {
		t.Errorf("after a restart: %v", all)
	}
}
