package loss

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// world is a cluster of nodes that announce themselves, or do not.
type world struct {
	t       *testing.T
	clock   time.Time
	nodes   map[string]*nodev1.NodeInfo
	records []*nodev1.Record
	events  []*nodev1.MoveEvent
	fenced  []string
	ordered []string
	leads   bool
	deaf    bool  // the store takes no sign
	fails   error // of the fence
	meddle  func()
	chosen  func()                // what happens while a node is chosen
	refuse  func(vm string) error // of the orders
	tried   []string              // VM and destination of each order
}

func newWorld(t *testing.T, names ...string) (*world, *Watcher) {
	t.Helper()
	w := &world{t: t, clock: time.Unix(1e6, 0), nodes: map[string]*nodev1.NodeInfo{}, leads: true}
	for _, name := range names {
		w.nodes[name] = &nodev1.NodeInfo{Name: name}
	}
	watcher := &Watcher{Self: names[0], After: time.Minute, Cluster: w, Records: w, Mover: w, Fence: w.fence,
		Now: func() time.Time {
			return w.clock
		}}
	return w, watcher
}

// owns gives a node a VM, with a snapshot of that age if it is one.
func (w *world) owns(node, id string, age time.Duration) *nodev1.Record {
	rec := &nodev1.Record{Vm: &nodev1.VM{Namespace: "default", Id: id}, Owner: &nodev1.Owner{Node: node}}
	if age > 0 {
		rec.Snapshots = []*nodev1.SnapshotRef{
			{Digest: "old-" + id, CreatedUnixNano: w.clock.Add(-2 * age).UnixNano()},
			{Digest: "new-" + id, CreatedUnixNano: w.clock.Add(-age).UnixNano()},
		}
	}
	w.records = append(w.records, rec)
	return rec
}

// pass lets time go by, in which all nodes but the silent ones announce themselves.
func (w *world) pass(watcher *Watcher, d time.Duration, silent ...string) {
	w.t.Helper()
	for ; d > 0; d -= Interval {
		w.clock = w.clock.Add(Interval)
		for name, n := range w.nodes {
			if !w.deaf && !slices.Contains(silent, name) {
				n.SeenUnixNano = w.clock.UnixNano()
			}
			n.Up = w.clock.UnixNano()-n.GetSeenUnixNano() < int64(16*time.Second)
		}
		if err := watcher.Look(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) Nodes() (all []*nodev1.NodeInfo) {
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[name]
		all = append(all, &nodev1.NodeInfo{Name: name, SeenUnixNano: n.GetSeenUnixNano(), Up: n.GetUp(),
			Cordoned: n.GetCordoned()})
	}
	return all
}

func (w *world) CachedNodes() []*nodev1.NodeInfo { return w.Nodes() }

func (w *world) Leads(string, string) bool { return w.leads }

func (w *world) Append(_ context.Context, ev *nodev1.MoveEvent) error {
	w.events = append(w.events, ev)
	return nil
}

func (w *world) List(context.Context, *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	return proto.CloneOf(&nodev1.ListResponse{Records: w.records}), nil
}

func (w *world) Choose(_ context.Context, but ...string) (string, error) {
	if w.chosen != nil {
		w.chosen()
	}
	for _, n := range w.Nodes() {
		if n.GetUp() && !slices.Contains(but, n.GetName()) {
			return n.GetName(), nil
		}
	}
	return "", errdefs.ErrUnavailable
}

func (w *world) fence(_ context.Context, n *nodev1.NodeInfo) error {
	w.fenced = append(w.fenced, n.GetName())
	if w.meddle != nil {
		w.meddle()
	}
	return w.fails
}

// Recover opens a wake, as the record of the VM has it from then on.
func (w *world) Recover(_ context.Context, req *nodev1.RecoverRequest) (*nodev1.RecoverResponse, error) {
	w.tried = append(w.tried, req.GetVm().GetId()+" "+req.GetTo())
	if w.refuse != nil {
		if err := w.refuse(req.GetVm().GetId()); err != nil {
			return nil, err
		}
	}
	for _, rec := range w.records {
		if rec.GetVm().GetId() == req.GetVm().GetId() {
			if transition.InHand(rec) != req.GetLostNode() || rec.GetGeneration() != req.GetGeneration() {
				return nil, errdefs.ErrFailedPrecondition
			}
			rec.Operation = &nodev1.Operation{Kind: nodev1.Kind_KIND_WAKE, Destination: req.GetTo()}
		}
	}
	if !req.GetFenced() {
		w.t.Errorf("ordered without a fence: %v", req)
	}
	w.ordered = append(w.ordered, req.GetDigest())
	return &nodev1.RecoverResponse{}, nil
}

func (w *world) want(fenced, ordered []string, events ...string) {
	w.t.Helper()
	var told []string
	for _, ev := range w.events {
		told = append(told, ev.GetType()+" "+ev.GetVm().GetId())
	}
	if !slices.Equal(w.fenced, fenced) || !slices.Equal(w.ordered, ordered) || !slices.Equal(told, events) {
		w.t.Errorf("fenced %q, ordered %q, told %q; want %q, %q, %q", w.fenced, w.ordered, told, fenced, ordered, events)
	}
}

// A node that is silent for long enough is told of, once, with what its VMs could be restored
// from. Without a fence nothing else happens.
func TestReport(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	watcher.Fence = nil
	w.owns("b", "slept", time.Hour)
	w.owns("b", "never", 0)
	w.owns("c", "other", time.Hour)
	w.pass(watcher, time.Minute)
	w.pass(watcher, time.Minute-Interval, "b")
	w.want(nil, nil)
	w.pass(watcher, 10*time.Minute, "b")
	w.want(nil, nil, "NodeLost slept", "NodeLost never")
	if said := w.events[0].GetReason(); !strings.Contains(said, "new-slept, 1h") {
		t.Errorf("told: %s", said)
	}
	if said := w.events[1].GetReason(); !strings.Contains(said, "no snapshot") {
		t.Errorf("told: %s", said)
	}
	w.pass(watcher, time.Minute) // it is back, and lost again
	w.pass(watcher, 2*time.Minute, "b")
	w.want(nil, nil, "NodeLost slept", "NodeLost never", "NodeLost slept", "NodeLost never")
}

// With a fence, what has a snapshot goes elsewhere: once, from the newest one, after the
// fence has proved that the node runs nothing.
func TestNewest(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	w.owns("b", "slept", time.Hour)
	w.owns("b", "never", 0)
	w.pass(watcher, time.Minute)
	w.pass(watcher, 10*time.Minute, "b")
	w.want([]string{"b"}, []string{"new-slept"}, "NodeLost slept", "NodeLost never", "Recovering slept")
	rec := w.records[0]
	rec.Operation = nil // the wake has failed
	w.pass(watcher, time.Minute, "b")
	w.want([]string{"b"}, []string{"new-slept", "new-slept"}, "NodeLost slept", "NodeLost never", "Recovering slept",
		"Recovering slept")
}

// A VM that went back to an older snapshot is not given the state that was left then.
func TestNewestAfterARollback(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	w.owns("b", "back", time.Hour).Base = "old-back"
	w.pass(watcher, time.Minute)
	w.pass(watcher, 10*time.Minute, "b")
	w.want([]string{"b"}, []string{"old-back"}, "NodeLost back", "Recovering back")
}

// A fence that fails gives nothing away, is told once, and asked again. A fence that has
// succeeded for a node which was heard since is none.
func TestFenceThatFails(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	w.owns("b", "slept", time.Hour)
	w.fails = errors.New("no answer")
	w.pass(watcher, time.Minute)
	w.pass(watcher, 3*time.Minute, "b")
	if len(w.fenced) < 3 || len(w.fenced) > 9 || len(w.ordered) > 0 || len(w.events) != 2 ||
		!strings.Contains(w.events[1].GetReason(), "no answer") {
		t.Fatalf("fenced %q, ordered %q, told %v", w.fenced, w.ordered, w.events)
	}
	w.fails, w.fenced, w.events = nil, nil, nil
	w.meddle = func() { w.nodes["b"].SeenUnixNano = w.clock.UnixNano() }
	w.pass(watcher, time.Minute, "b")
	if len(w.fenced) == 0 || len(w.ordered) > 0 {
		t.Fatalf("it was heard in its fence: fenced %q, ordered %q", w.fenced, w.ordered)
	}
	w.meddle = nil
	fenced := len(w.fenced)
	w.pass(watcher, 3*time.Minute, "b")
	if len(w.fenced) != fenced+1 || len(w.ordered) != 1 {
		t.Errorf("silent again: fenced %q, ordered %q", w.fenced, w.ordered)
	}
}

// A controller takes no node for lost while it hears none, has just begun to listen, was held up
// itself, or does not lead. A controller that hears few nodes fences none.
func TestDeafController(t *testing.T) {
	for name, test := range map[string]func(*world, *Watcher){
		"its store takes no sign": func(w *world, watcher *Watcher) {
			w.deaf = true
			w.pass(watcher, 10*time.Minute)
			w.deaf = false
			w.pass(watcher, time.Minute-2*Interval, "b")
		},
		"it has just begun": func(w *world, watcher *Watcher) {
			w.nodes["b"].SeenUnixNano = 1
			*watcher = Watcher{Self: "a", After: time.Minute, Cluster: w, Records: w, Mover: w, Fence: w.fence, Now: watcher.Now}
			w.pass(watcher, time.Minute, "b")
		},
		"it was held up": func(w *world, watcher *Watcher) {
			w.pass(watcher, 50*time.Second, "b")
			w.clock = w.clock.Add(time.Hour)
			w.pass(watcher, time.Minute, "b")
		},
		"another one leads": func(w *world, watcher *Watcher) {
			w.leads = false
			w.pass(watcher, 10*time.Minute, "b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, watcher := newWorld(t, "a", "b", "c")
			w.owns("b", "slept", time.Hour)
			w.pass(watcher, time.Minute)
			test(w, watcher)
			w.want(nil, nil)
		})
	}
	t.Run("it is cut off, and has heard one of them later than the others", func(t *testing.T) {
		w, watcher := newWorld(t, "a", "b", "c")
		w.owns("c", "slept", time.Hour)
		w.pass(watcher, time.Minute)
		w.pass(watcher, Interval, "c")
		w.pass(watcher, 10*time.Minute, "b", "c")
		w.want(nil, nil, "NodeLost slept", "NodeLost slept")
	})
	t.Run("it hears itself alone", func(t *testing.T) {
		w, watcher := newWorld(t, "a", "b", "c")
		w.owns("b", "slept", time.Hour)
		w.pass(watcher, time.Minute)
		w.pass(watcher, 10*time.Minute, "b", "c")
		w.want(nil, nil, "NodeLost slept", "NodeLost slept")
	})
}

// So many VMs of one node wake at once.
func TestFewAtOnce(t *testing.T) {
	w, watcher := newWorld(t, "a", "b", "c")
	for i := range parallel + 3 {
		w.owns("b", fmt.Sprint(i), time.Hour)
	}
	w.pass(watcher, time.Minute)
	w.pass(watcher, 5*time.Minute, "b")
	if len(w.ordered) != parallel {
		t.Errorf("%d at once", len(w.ordered))
	}
	for _, rec := range w.records[:2] { // they run elsewhere now
		rec.Operation, rec.Owner = nil, &nodev1.Owner{Node: "c"}
	}
	w.pass(watcher, Interval, "b")
	if len(w.ordered) != parallel+2 {
		t.Errorf("%d in all, when two were done", len(w.ordered))
	}
	if kinds := w.events[len(w.events)-1].GetType(); kinds != moves.Recovering {
		t.Errorf("told last: %s", kinds)
	}
}

// What the source of a lost move still holds is newer than any snapshot: only who is asked may
// give it up.
func TestKeptCannotBeGivenUp(t *testing.T) {
	snapshots := []*nodev1.SnapshotRef{{Digest: "sha256:aa"}}
	_, watcher := newWorld(t, "a")
	ready, under := watcher.restorable([]*nodev1.Record{
		{Uid: "lost", Snapshots: snapshots},
		{Uid: "kept", Snapshots: snapshots, Kept: &nodev1.Kept{Node: "a"}},
	})
	if len(ready) != 1 || ready[0].GetUid() != "lost" || under != 0 {
		t.Errorf("ordered elsewhere: %v", ready)
	}
}

// Nodes that were cordoned and have gone, with no VM, are none of those that most must be heard of: a
// cluster whose nodes were replaced still knows its losses. One that has a VM, or was not cordoned,
// is.
func TestRetiredNodesDoNotCount(t *testing.T) {
	retired := []string{"old1", "old2", "old3", "old4"}
	for name, c := range map[string]struct {
		change func(*world)
		fenced int
	}{
		"retired":       {func(*world) {}, 1},
		"not cordoned":  {func(w *world) { w.nodes["old1"].Cordoned = false }, 0},
		"one with a VM": {func(w *world) { w.owns("old1", "left", 0) }, 0},
		"one that comes": {func(w *world) {
			w.owns("", "late", 0).Operation = &nodev1.Operation{Kind: nodev1.Kind_KIND_WAKE, Destination: "old2"}
		}, 0},
		"and another node": {func(w *world) { w.nodes["c"] = &nodev1.NodeInfo{Name: "c"} }, 1},
	} {
		w, watcher := newWorld(t, append([]string{"a", "b"}, retired...)...)
		for _, n := range retired {
			w.nodes[n].Cordoned = true
		}
		w.owns("b", "web", time.Hour)
		c.change(w)
		w.pass(watcher, 2*time.Minute, append(retired, "b")...)
		if got := len(slices.DeleteFunc(w.fenced, func(n string) bool { return n != "b" })); min(got, 1) != c.fenced {
			t.Errorf("%s: fenced %v", name, w.fenced)
		}
	}
}

// While the nodes cannot be read none of them is taken for silent: there is one look for each read.
func TestNoLookWithoutARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, watcher := newWorld(t, "c", "n1")
		ctx, cancel := context.WithCancel(t.Context())
		read, done := make(chan struct{}, 1), make(chan struct{})
		go func() { watcher.Run(ctx, read); close(done) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if !watcher.looked.IsZero() {
			t.Error("the nodes were not read, and the watcher has looked at them")
		}
		read <- struct{}{}
		synctest.Wait()
		if !watcher.looked.Equal(w.clock) {
			t.Error("the nodes were read, and the watcher has not looked")
		}
		cancel()
		<-done
	})
}
