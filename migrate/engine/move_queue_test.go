package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Moves beyond the limits wait, the oldest first, and say for what. One whose
// own nodes are in the way keeps no place from a younger one.
func TestMovesWait(t *testing.T) {
	e := New(Parts{}, Options{})
	t.Cleanup(e.Close)
	nodes := map[string]*nodev1.NodeInfo{}
	for _, name := range strings.Split("abcdefghiklm", "") {
		nodes[name] = &nodev1.NodeInfo{Name: name, Up: true}
	}
	nodes["silent"], nodes["closed"] = &nodev1.NodeInfo{Name: "silent"}, &nodev1.NodeInfo{Name: "closed", Up: true,
		Cordoned: true}
	const at, pending = nodev1.Phase_PHASE_TRANSFERRING, nodev1.Phase_PHASE_PENDING
	last := 0
	under := func(from, to string, phase nodev1.Phase) *nodev1.Record {
		last++
		return &nodev1.Record{Operation: &nodev1.Operation{
			Id: fmt.Sprint(last), Kind: nodev1.Kind_KIND_MIGRATE, Source: from, Destination: to, Phase: phase, OpenedUnixNano: 1,
		}}
	}
	waiting := func(n int, from, to string) (all []*nodev1.Record) {
		for range n {
			all = append(all, under(from, to, pending))
		}
		return all
	}
	mine := &nodev1.Operation{Id: "z", Source: "a", Destination: "b", OpenedUnixNano: 2}
	for name, c := range map[string]struct {
		all  []*nodev1.Record
		want string
	}{
		"none":   {nil, ""},
		"others": {[]*nodev1.Record{under("c", "d", at), under("c", "d", at)}, ""},
		"out":    {[]*nodev1.Record{under("a", "d", at), under("a", "e", pending)}, "move.outgoing"},
		"in":     {[]*nodev1.Record{under("c", "b", at), under("d", "b", at)}, "move.incoming"},
		"all": {[]*nodev1.Record{under("c", "d", at), under("e", "f", at), under("g", "h", at), under("i", "k", at),
			under("l", "m", at)}, "move.parallel"},
		"ahead": {[]*nodev1.Record{under("c", "d", at), under("e", "f", at), under("g", "h", at), under("i", "k", at),
			under("l", "m", pending)}, "move.parallel"},
		"younger": {[]*nodev1.Record{under("a", "d", at),
			{Operation: &nodev1.Operation{Id: "y", Kind: nodev1.Kind_KIND_MIGRATE, Source: "a", Phase: pending,
				OpenedUnixNano: 3}}}, ""},

		"a drain of others":           {waiting(20, "c", "d"), ""},
		"a drain of its source":       {waiting(20, "a", "d"), "move.outgoing"},
		"a drain to its destination":  {waiting(20, "c", "b"), "move.incoming"},
		"older ones to a silent node": {waiting(5, "a", "silent"), ""},
		"older ones from one":         {waiting(5, "silent", "b"), ""},
		"older ones to a cordoned":    {waiting(5, "a", "closed"), ""},
		"older ones to a busy one":    {append(waiting(5, "a", "d"), under("c", "d", at), under("e", "d", at)), ""},
	} {
		if got := e.placement.full(c.all, nodes, mine); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A turn that has not come is no failure.
func TestWaitingIsNoFailure(t *testing.T) {
	if !waiting(&StepError{Err: &waitError{"x"}, VM: vm}) || waiting(context.Canceled) {
		t.Error("a turn that has not come is an error like any other")
	}
}

// crowd is a cluster of VMs whose nodes hear nothing of the moves that have a place.
type crowd struct {
	records nodev1.RecordsService
	nodes   []*nodev1.NodeInfo
	looks   atomic.Int64 // at the nodes
}

func (c *crowd) Nodes() []*nodev1.NodeInfo { c.looks.Add(1); return c.nodes }
func (c *crowd) Drives(string) bool        { return true }

func (c *crowd) Node(name string) (*nodev1.NodeInfo, error) {
	for _, n := range c.nodes {
		if n.GetName() == name {
			return n, nil
		}
	}
	return nil, errdefs.ErrNotFound
}

func (c *crowd) Peer(node string) (nodev1.PeerService, error) {
	return nil, &LinkError{Node: node, Err: errdefs.ErrUnavailable}
}

// owns makes a VM of that name, of a node.
func (c *crowd) owns(t *testing.T, id, node string) *nodev1.Record {
	t.Helper()
	web := &nodev1.VM{Namespace: "default", Id: id}
	rec, err := c.records.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: web})
	if err == nil {
		rec, err = c.records.Own(t.Context(), &nodev1.OwnRequest{Vm: web, Node: node, Generation: rec.GetGeneration()})
	}
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// move opens a move of a VM of that name, without the checks of an order: its nodes may be as they are since then.
func (c *crowd) move(t *testing.T, id, from, to string) {
	t.Helper()
	rec := c.owns(t, id, from)
	_, err := c.records.Open(t.Context(), &nodev1.OpenRequest{Vm: rec.GetVm(), Operation: &nodev1.Operation{
		Id: id, Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Generation: rec.GetGeneration(), Managed: true, Source: from,
		Destination: to, Mode: "live",
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *crowd) operation(t *testing.T, id string) *nodev1.Operation {
	t.Helper()
	resp, err := c.records.Operation(t.Context(), &nodev1.OperationRequest{Id: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetOperation()
}

// Moves of a node that fell silent hold up no younger move. They end when the node was silent for as long as they
// may take. They need no answer of that node, and no node was asked for anything.
func TestSilentNodesHoldUpNoMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{records: controller.New(storetest.NewMemory()), nodes: []*nodev1.NodeInfo{
			{Name: "a", Up: true}, {Name: "b", Up: true}, {Name: "c", Up: true}, {Name: "silent"},
		}}
		for i := range 5 {
			c.move(t, fmt.Sprintf("to-%d", i), "a", "silent")
			c.move(t, fmt.Sprintf("from-%d", i), "silent", "b")
		}
		time.Sleep(30 * time.Second)
		c.nodes[3].SeenUnixNano = time.Now().UnixNano() // it was there meanwhile
		c.move(t, "young", "c", "b")
		e := New(Parts{Records: c.records, Peers: c, Events: Sinks{}}, Options{Node: "c1", Operation: time.Minute,
			Repository: func(*nodev1.Record) string {
				return ""
			}})
		t.Cleanup(e.Close)
		if err := e.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if op := c.operation(t, "young"); op.GetPhase() != nodev1.Phase_PHASE_PREPARING {
			t.Errorf("after moves that wait for a silent node: %v", op)
		}
		if status, err := e.Status(t.Context(), "to-1"); err != nil ||
			!strings.Contains(status.GetWaiting(), "node silent has not been heard") {
			t.Errorf("it waits for %q, %v", status.GetWaiting(), err)
		}
		time.Sleep(57 * time.Second)
		if op := c.operation(t, "to-1"); op.GetPhase() != nodev1.Phase_PHASE_PENDING {
			t.Errorf("before its timeout: %v", op)
		}
		time.Sleep(3 * time.Second)
		for i := range 5 {
			for _, way := range []string{"to", "from"} {
				op := c.operation(t, fmt.Sprintf("%s-%d", way, i))
				if op.GetPhase() != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.GetReason(), "has not been heard for 1m0s") {
					t.Errorf("at its timeout: %v", op)
				}
			}
		}
	})
}

// listed counts how often all records are asked for.
type listed struct {
	nodev1.RecordsService
	times atomic.Int64
}

func (l *listed) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	l.times.Add(1)
	return l.RecordsService.List(ctx, req)
}

// However many moves wait, as in the drain of a large node, they look together. Each place is given by what the
// move before it left.
func TestManyWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, rounds = 60, 20
		l := &listed{RecordsService: controller.New(storetest.NewMemory())}
		c := &crowd{records: l, nodes: []*nodev1.NodeInfo{{Name: "a", Up: true}}}
		for i := range many {
			to := fmt.Sprint("to", i)
			c.nodes = append(c.nodes, &nodev1.NodeInfo{Name: to, Up: true})
			c.move(t, fmt.Sprintf("m%02d", i), "a", to)
		}
		e := New(Parts{Records: l, Peers: c, Events: Sinks{}}, Options{Node: "c1", Operation: time.Hour, Patience: time.Hour})
		t.Cleanup(e.Close)
		if err := e.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rounds * queueInterval)
		placed := 0
		for i := range many {
			if c.operation(t, fmt.Sprintf("m%02d", i)).GetPhase() != nodev1.Phase_PHASE_PENDING {
				placed++
			}
		}
		if placed != DefaultLimits.Out {
			t.Errorf("%d moves from one node have a place, %d may", placed, DefaultLimits.Out)
		}
		if n := l.times.Load(); n > 3*rounds {
			t.Errorf("%d moves that wait have looked at all records %d times in %d intervals, and at the nodes %d times", many,
				n, rounds, c.looks.Load())
		}
	})
}

// VMs that are ordered away at once, and no node named, go where there is room for them: each is
// counted where it was ordered, for no node has told of it yet.
func TestChosenNodesShare(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		free [4]uint64
		want [4]int
	}{
		"equal ones":       {[4]uint64{64, 16 * gib, 16 * gib, 16 * gib}, [4]int{0, 2, 2, 2}},
		"a small one":      {[4]uint64{64, 40 * gib, 20 * gib, 1 * gib}, [4]int{0, 4, 2, 0}},
		"that say of none": {[4]uint64{}, [4]int{0, 2, 2, 2}},
	} {
		cl, got := &crowd{records: controller.New(storetest.NewMemory())}, [4]int{}
		for i, node := range []string{"a", "b", "c", "d"} {
			cl.nodes = append(cl.nodes, &nodev1.NodeInfo{Name: node, Up: true, FreeBytes: c.free[i]})
		}
		e := New(Parts{Records: cl.records, Peers: cl, Events: Sinks{}},
			Options{Node: "c1", Repository: func(*nodev1.Record) string {
				return ""
			}})
		t.Cleanup(e.Close)
		for i := range 6 {
			cl.owns(t, fmt.Sprint("m", i), "a")
			status, err := e.Migrate(t.Context(),
				&nodev1.MigrateRequest{Vm: &nodev1.VM{Namespace: "default", Id: fmt.Sprint("m", i)}})
			if err != nil {
				t.Fatal(err)
			}
			got[status.GetOperation().GetDestination()[0]-'a']++
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
