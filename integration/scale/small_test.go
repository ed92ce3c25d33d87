package scale

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	service "godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ledger is a store that counts how it is asked.
type ledger struct {
	*storetest.Memory
	mu    sync.Mutex
	calls map[string]int
}

func (l *ledger) count(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[call]++
}

func (l *ledger) counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.calls)
}

// List implements store.Store.
func (l *ledger) List(ctx context.Context, after string, room int) ([]*nodev1.Record, error) {
	l.count("all")
	return l.Memory.List(ctx, after, room)
}

// Find implements store.Store.
func (l *ledger) Find(ctx context.Context, which store.Which) (store.Found, error) {
	l.count("by index")
	return l.Memory.Find(ctx, which)
}

// PendingDeletions implements store.Store.
func (l *ledger) PendingDeletions(ctx context.Context, which store.WhichDeletions) ([]*nodev1.Owed, error) {
	if which.Deleter == "" && which.VM == nil {
		l.count("all pending deletions")
	} else {
		l.count("a node's pending deletions")
	}
	return l.Memory.PendingDeletions(ctx, which)
}

// State implements store.Store.
func (l *ledger) State(ctx context.Context) (*nodev1.StoreState, error) {
	l.count("state")
	return l.Memory.State(ctx)
}

// Load implements store.Store.
func (l *ledger) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	l.count("one")
	return l.Memory.Load(ctx, vm, asked)
}

// Apply implements store.Store.
func (l *ledger) Apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	l.count("write")
	return l.Memory.Apply(ctx, vm, version, change)
}

// Note implements store.Notes.
func (l *ledger) Note(ctx context.Context, kind, key string, value []byte) error {
	l.count("write")
	return l.Memory.Note(ctx, kind, key, value)
}

// The loops of 50 nodes with 500 VMs, by a clock that is not the host's, for a minute in which
// nothing happens. Each round asks for one list, by the index. Nothing else is read of the VMs
// and nothing is written. Each deletion that was decided before was asked of a store once.
func TestAMinuteOfASmallFleet(t *testing.T) {
	const nodes = 50
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{Memory: storetest.NewMemory(), calls: map[string]int{}}
		for node := range nodes {
			for i := range vmsOfNode {
				rec := recordOf(node, i, nodes)
				if _, err := l.Memory.Apply(t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
					t.Fatal(err)
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		records := controller.New(l)
		board, err := cluster.Open(ctx, l, false)
		if err != nil {
			t.Fatal(err)
		}
		board.SetSelf("c0")
		orders := &service.Service{Self: "c0", Records: records, Cluster: board, Store: controller.NewIncarnations(l, l, "c0",
			board.Names, nil)}
		fleet := make([]*Node, nodes)
		for i := range fleet {
			fleet[i] = &Node{index: i, shims: newShims(i)}
			fleet[i].run(ctx, records, orders, func() error { return nil })
		}
		own := engine.New(engine.Parts{Records: records, Events: quiet{}}, engine.Options{
			Node: "c0", Repository: func(*nodev1.Record) string { return "" }, Retention: engine.Retention{Scans: true},
		})
		var loops sync.WaitGroup
		none := func() ([]*nodev1.VM, error) { return nil, nil }
		loops.Go(func() {
			engine.RunPeriodically(ctx, []engine.Work{{Name: "round", Do: func(ctx context.Context) error {
				return own.Round(ctx, none)
			}}, {Name: "sweep", Do: own.Sweep}})
		})

		time.Sleep(2 * time.Minute)
		synctest.Wait()
		before := l.counts()
		time.Sleep(time.Minute)
		synctest.Wait()
		after := l.counts()
		rounds := (nodes + 1) * int(time.Minute/engine.PeriodicInterval) // and the controller's own
		for call, want := range map[string]int{"by index": rounds, "one": 0, "write": 0, "all": 1, "all pending deletions": 1,
			"a node's pending deletions": 0, "state": int(time.Minute/cluster.Interval) + 1} {
			if got := after[call] - before[call]; got != want {
				t.Errorf("%s: %d times in a minute, want %d", call, got, want)
			}
		}
		drops := map[string]int{}
		for _, n := range fleet {
			for digest, count := range n.shims.drops {
				drops[digest] += count
			}
			if len(n.shims.ended) > 0 {
				t.Errorf("node %d: %q was ordered", n.index, n.shims.ended)
			}
		}
		if len(drops) != nodes*deletionsOfNode || slices.Max(slices.Collect(maps.Values(drops))) != 1 {
			t.Errorf("%d deletions of %d are done, the most often done %d times", len(drops), nodes*deletionsOfNode,
				slices.Max(append(slices.Collect(maps.Values(drops)), 0)))
		}
		cancel()
		for _, n := range fleet {
			n.loops.Wait()
		}
		loops.Wait()
		own.Close()
	})
}

// A figure is the worse of both stores, and missing while one of them is.
func TestTheWorseStoreCounts(t *testing.T) {
	r := &Result{Figures: figures(Groups)}
	r.set("idle_cores", ofBolt, 0.2)
	r.set("claims_speedup_64", ofBolt, 9)
	if f := r.Figures[0]; f.Value != nil {
		t.Errorf("%v by one store", *f.Value)
	}
	r.set("idle_cores", ofEtcd, 0.05)
	r.set("claims_speedup_64", ofEtcd, 7)
	for _, f := range r.Figures {
		want := map[string]float64{"idle_cores": 0.2, "claims_speedup_64": 7}[f.Name]
		if want != 0 && (f.Value == nil || *f.Value != want || *f.Met) {
			t.Errorf("%s: %v, want %v, missed", f.Name, f.Value, want)
		}
	}
	if len(r.Check()) == 0 {
		t.Error("a result that lacks most is complete")
	}
}
