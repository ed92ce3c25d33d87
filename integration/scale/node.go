package scale

import (
	"context"
	"sync"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"
	service "godwit.dev/godwit/migrate/moves"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Node is one node of the fleet.
type Node struct {
	index   int
	shims   *shims
	records *counting
	engine  *engine.Engine
	loops   sync.WaitGroup
	stop    context.CancelFunc

	mu               sync.Mutex
	began            time.Time
	announced, round time.Time // the first answer to each since then
	failed           int
}

// counting counts what a node asks of the records.
type counting struct {
	nodev1.RecordsService
	mu    sync.Mutex
	calls map[string]int
}

func (c *counting) count(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
}

// List implements nodev1.RecordsService.
func (c *counting) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	if c.count("list"); req.GetNode() == "" && !req.GetMoves() && len(req.GetUids()) == 0 {
		c.count("full list")
	}
	return c.RecordsService.List(ctx, req)
}

// Get implements nodev1.RecordsService.
func (c *counting) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	c.count("get")
	return c.RecordsService.Get(ctx, req)
}

// Self implements moves.Speaker.
func (n *Node) Self() *nodev1.NodeInfo {
	return &nodev1.NodeInfo{Name: nodeName(n.index), Version: "scale", Execs: true, RamBytes: 64 << 30,
		FreeBytes: 32 << 30}
}

// Untold implements moves.Speaker.
func (*Node) Untold() []*nodev1.MoveEvent { return nil }

// Told implements moves.Speaker.
func (*Node) Told(int) {}

// Heard implements moves.Speaker.
func (*Node) Heard(context.Context, *nodev1.AnnounceResponse) error { return nil }

// Start the loops that godwitd runs, over connections of the node's own.
func (n *Node) Start(ctx context.Context, dir string, controllers []string) error {
	id, err := pki.Load(pki.In(pkiDir(dir, n.index)))
	if err != nil {
		return err
	}
	ctx, n.stop = context.WithCancel(ctx)
	records := record.RemoteFrom(ownAddress(n.index), controllers, id.Client())
	n.run(ctx, records, moves.Over(records), records.Close)
	return nil
}

// run the loops on these services, until the node is stopped.
func (n *Node) run(ctx context.Context, records nodev1.RecordsService, board service.Announcer, end func() error) {
	n.records = &counting{RecordsService: records, calls: map[string]int{}}
	n.engine = engine.New(engine.Parts{
		Records: n.records, Machines: machines{n.shims}, Observer: n.shims, Tasks: containers{n.shims},
		Departed:  containers{n.shims},
		Snapshots: snapshots{n.shims}, Events: quiet{},
	}, engine.Options{Node: nodeName(n.index), Repository: func(r *nodev1.Record) string {
		return repositoryBase + r.GetUid()
	}})
	n.mu.Lock()
	n.began, n.announced, n.round = time.Now(), time.Time{}, time.Time{}
	n.mu.Unlock()
	n.loops.Go(func() { service.Live(ctx, announcing{board, n}, n) })
	n.loops.Go(func() {
		engine.RunPeriodically(ctx, []engine.Work{{Name: "round", Do: n.aRound}, {Name: "sweep", Do: n.engine.Sweep}})
	})
	n.loops.Go(func() { engine.RunPeriodically(ctx, []engine.Work{{Name: "scan", Do: n.engine.Scan}}) })
	n.loops.Go(func() { <-ctx.Done(); n.engine.Close(); _ = end() })
}

// aRound is one of them.
func (n *Node) aRound(ctx context.Context) error {
	err := n.engine.Round(ctx, n.shims.List)
	n.answered(&n.round, err)
	return err
}

func (n *Node) answered(first *time.Time, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.failed++
	} else if first.IsZero() {
		*first = time.Now()
	}
}

// served answers when the node had both answers for the first time since it was started.
func (n *Node) served() (at time.Time, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.announced.IsZero() || n.round.IsZero() {
		return time.Time{}, false
	}
	if n.announced.After(n.round) {
		return n.announced, true
	}
	return n.round, true
}

// announcing notes the first answer.
type announcing struct {
	service.Announcer
	node *Node
}

// Announce implements moves.Announcer.
func (a announcing) Announce(ctx context.Context, req *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	resp, err := a.Announcer.Announce(ctx, req)
	a.node.answered(&a.node.announced, err)
	return resp, err
}

// Stop the loops; the result of a call under way is dropped.
func (n *Node) Stop() {
	if n.stop != nil {
		n.stop()
		n.loops.Wait()
		n.stop = nil
	}
}

// claim one of the node's VMs anew.
func (n *Node) claim(ctx context.Context, i int) error {
	vm := vmOf(n.index, i)
	n.shims.mu.Lock()
	generation := n.shims.generation[vm.GetId()]
	n.shims.mu.Unlock()
	rec, err := n.records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: nodeName(n.index), Generation: generation,
		Uid: uidOf(n.index, i)})
	if err == nil {
		n.shims.claimed(rec)
	}
	return err
}
