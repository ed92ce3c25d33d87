package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// counted counts what is written down.
type counted struct {
	notes
	writes int
}

func (c *counted) Note(ctx context.Context, kind, key string, value []byte) error {
	c.writes++
	return c.notes.Note(ctx, kind, key, value)
}

// cluster has states of controllers c0, c1, .. over one store, and one clock.
type clustered struct {
	t      *testing.T
	store  *counted
	states []*State
	clock  time.Time
}

func newClustered(t *testing.T, n int, shared bool) *clustered {
	c := &clustered{t: t, store: &counted{notes: storetest.NewMemory()}, clock: time.Unix(1_000_000, 0)}
	for range n {
		c.states = append(c.states, nil)
		c.restart(len(c.states)-1, shared)
	}
	return c
}

func (c *clustered) restart(i int, shared bool) {
	c.t.Helper()
	b, err := Open(c.t.Context(), c.store, shared)
	if err != nil {
		c.t.Fatal(err)
	}
	b.now = func() time.Time { return c.clock }
	for _, k := range b.nodes { // Open went by another clock
		k.noteAt, k.renewed = c.clock, c.clock.Add(renewAfter)
	}
	b.SetSelf(fmt.Sprint("c", i))
	c.states[i] = b
}

// pass lets time go by, in which nodes tell a controller of themselves.
func (c *clustered) pass(d time.Duration, says map[string]int) {
	c.t.Helper()
	for end := c.clock.Add(d); c.clock.Before(end); c.clock = c.clock.Add(Interval) {
		for name, i := range says {
			c.states[i].says(c.t, &nodev1.NodeInfo{Name: name, Address: name, Controller: name[0] == 'c', RamBytes: 64,
				FreeBytes: 32})
		}
		for i, b := range c.states {
			if _, lives := says[fmt.Sprint("c", i)]; lives {
				if err := b.Maintain(c.t.Context()); err != nil {
					c.t.Fatal(err)
				}
			}
		}
	}
}

func (c *clustered) up(name string, want ...bool) {
	c.t.Helper()
	for i, w := range want {
		if n, err := c.states[i].Node(name); err != nil || n.GetUp() != w {
			c.t.Errorf("controller %d: node %s is %v, %v; want up %t", i, name, n, err, w)
		}
	}
}

// An idle minute of a hundred nodes writes nothing to a controller's own store. In a shared store it writes no more
// than the controllers' own signs.
func TestAnIdleMinuteWritesNothing(t *testing.T) {
	for _, controllers := range []int{1, 3} {
		c := newClustered(t, controllers, controllers > 1)
		says := map[string]int{}
		for i := range 100 {
			says[fmt.Sprint("n", i)] = i % controllers
		}
		for i := range controllers {
			says[fmt.Sprint("c", i)] = i
		}
		c.pass(time.Minute, says)
		before := c.store.writes
		c.pass(time.Minute, says)
		want := 0
		if controllers > 1 {
			want = controllers * int(time.Minute/Interval)
		}
		if got := c.store.writes - before; got != want {
			t.Errorf("%d controllers: %d writes in a minute, want %d", controllers, got, want)
		}
		for i := range 100 {
			for _, b := range c.states {
				if n, err := b.Node(fmt.Sprint("n", i)); err != nil || !n.GetUp() {
					t.Errorf("%d controllers: %v, %v: want it up", controllers, n, err)
				}
			}
		}
	}
}

// A node that one controller hears is up for the others for as long as that controller is, and wherever the node
// goes. A node that falls silent is up for none.
func TestAControllerVouchesForItsNodes(t *testing.T) {
	c := newClustered(t, 2, true)
	c.pass(time.Minute, map[string]int{"c0": 0, "c1": 1, "n": 0})
	c.up("n", true, true)
	c.pass(4*Interval, map[string]int{"c0": 0, "c1": 1})
	c.up("n", false, false)
	c.pass(Interval, map[string]int{"c0": 0, "c1": 1, "n": 0})
	c.up("n", true, true)
	c.pass(4*Interval, map[string]int{"c1": 1}) // c0 is gone, and n with it
	c.up("c0", false, false)
	if n, err := c.states[1].Node("n"); err != nil || n.GetUp() {
		t.Errorf("%v, %v: who hears it is gone", n, err)
	}
	c.pass(Interval, map[string]int{"c1": 1, "n": 1})
	c.up("n", true, true)
}

// A restart of the controller is no silence of nodes; which ones were silent before, it knows still.
func TestARestartIsNoSilence(t *testing.T) {
	c := newClustered(t, 1, false)
	c.pass(time.Hour, map[string]int{"c0": 0, "lives": 0, "silent": 0})
	c.pass(time.Hour, map[string]int{"c0": 0, "lives": 0})
	c.restart(0, false)
	c.up("lives", true)
	c.up("silent", false)
	c.pass(silence, map[string]int{"c0": 0})
	c.up("lives", false)
}

// A controller that heard no node for a while, because it stood still, calls none silent for that.
func TestOneThatStoodStillCallsNoneSilent(t *testing.T) {
	c := newClustered(t, 1, false)
	c.pass(time.Minute, map[string]int{"c0": 0, "n": 0})
	c.clock = c.clock.Add(time.Hour)
	if err := c.states[0].Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if note := c.states[0].nodes["n"].note; note.GetSilent() {
		t.Errorf("%v", note)
	}
}

// While a controller of a build before is up, each sign of each node is written, and the index is not relied on.
// Once that controller is gone, or new, neither is so any more.
func TestWithAControllerOfABuildBefore(t *testing.T) {
	c := newClustered(t, 2, true)
	says := map[string]int{"c0": 0, "c1": 1, "n": 0}
	c.pass(time.Minute, says)
	if !c.states[0].Indexed() || !c.states[1].Indexed() {
		t.Fatal("two of this build")
	}
	old := func() { // as that build writes of itself
		t.Helper()
		value, err := proto.Marshal(&nodev1.NodeInfo{Name: "c1", Controller: true, SeenUnixNano: c.clock.UnixNano()})
		if err == nil {
			err = c.store.notes.Note(t.Context(), kindNode, "c1", value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(says, "c1")
	for range 3 {
		old()
		c.pass(Interval, says)
	}
	before := c.store.writes
	old()
	c.pass(Interval, says)
	if got := c.store.writes - before; got != 2 || c.states[0].Indexed() {
		t.Errorf("%d writes by two nodes, indexed: %t", got, c.states[0].Indexed())
	}
	again, err := Open(t.Context(), c.store, true)
	if err != nil || !again.SetSelf("c1") {
		t.Errorf("a controller of this build hears nothing of the build before, %v", err)
	}
	c.pass(silence+Interval, says)
	if !c.states[0].Indexed() {
		t.Error("the controller of the build before is gone")
	}
}

// hanging is a store whose reads or writes wait.
type hanging struct {
	notes
	wait chan struct{}
}

func (h *hanging) Note(ctx context.Context, kind, key string, value []byte) error {
	if key == "changed" {
		<-h.wait
	}
	return h.notes.Note(ctx, kind, key, value)
}

// A store that takes its time with one node's note keeps no other node waiting.
func TestNoNodeWaitsForAnothersNote(t *testing.T) {
	h := &hanging{notes: storetest.NewMemory(), wait: make(chan struct{})}
	b, err := Open(t.Context(), h, false)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := b.Announce(context.Background(), &nodev1.NodeInfo{Name: "changed"})
		done <- err
	}()
	b.says(t, &nodev1.NodeInfo{Name: "other"})
	if all := b.Nodes(); len(all) != 1 {
		t.Errorf("%v", all)
	}
	close(h.wait)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

var _ store.Notes = (*hanging)(nil)

// A controller of a build that may not look at the store's own state is told as long as it is up: A controller of a
// build before counts too, though its last sign may be of just now. This controller itself, a plain node and a
// controller of this build do not count.
func TestUncheckedControllers(t *testing.T) {
	now := time.Now()
	notes := storetest.NewMemory()
	write := func(info *nodev1.NodeInfo) {
		t.Helper()
		value, err := proto.Marshal(info)
		if err == nil {
			err = notes.Note(t.Context(), kindNode, info.GetName(), value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sign := func(name string, controller bool, keeps uint32) {
		write(&nodev1.NodeInfo{Name: name, Controller: controller, Keeps: keeps, SeenUnixNano: now.UnixNano()})
	}
	sign("old", true, 0)
	sign("self", true, 0) // before it was upgraded
	sign("node", false, 0)
	sign("new", true, keeps)
	for _, shared := range []bool{true, false} {
		b, err := Open(t.Context(), notes, shared)
		if err != nil {
			t.Fatal(err)
		}
		b.now = func() time.Time { return now }
		b.SetSelf("self")
		if got := b.Unchecked(); slices.Equal(got, []string{"old"}) != shared {
			t.Errorf("shared %v: %v", shared, got)
		}
		for range 4 { // it goes on, and then it does not
			now = now.Add(Interval)
			sign("old", true, 0)
			if got := b.Unchecked(); len(got) > 0 != shared {
				t.Errorf("while it is up: %v", got)
			}
		}
		now = now.Add(Silence)
		if got := b.Unchecked(); len(got) > 0 {
			t.Errorf("after it was stopped: %v", got)
		}
	}
}

// What a node says for people is what it has said here, last. Notes do not keep it: another controller knows of the
// node, and not that.
func TestHeard(t *testing.T) {
	notes := storetest.NewMemory()
	b, err := OpenFor(t.Context(), notes, false, "c")
	if err != nil {
		t.Fatal(err)
	}
	b.says(t, &nodev1.NodeInfo{Name: "n", Version: "v", CpuClasses: []string{"kvm/host"}, Vmms: []string{"qemu/1"}})
	b.says(t, &nodev1.NodeInfo{Name: "c", Controller: true, ControllerOnly: true})
	all := b.Heard()
	if len(all) != 1 || !all[0].Said || len(all[0].Info.GetCpuClasses()) != 1 || len(all[0].Info.GetVmms()) != 1 {
		t.Errorf("heard here: %v", all)
	}
	next, err := OpenFor(t.Context(), notes, false, "c")
	if err != nil {
		t.Fatal(err)
	}
	all = next.Heard()
	if len(all) != 1 || all[0].Said || all[0].Info.GetVersion() != "v" || !all[0].Info.GetUp() ||
		all[0].Info.GetCpuClasses() != nil || all[0].Info.GetVmms() != nil {
		t.Errorf("of a note: %v", all)
	}
}
