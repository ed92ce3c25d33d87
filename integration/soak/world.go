package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Bounds, on a machine without KVM that has other work.
var (
	bootBound   = harness.Slow(2 * time.Minute)  // from a run to the first beacon
	settleBound = harness.Slow(4 * time.Minute)  // from the end of all faults to VMs as they have to be
	askBound    = harness.Slow(10 * time.Second) // an answer of a controller, one of three
	answerBound = harness.Slow(90 * time.Second) // an answer over a line of TCP, of a VM that moves
)

const (
	runtimeName = "io.containerd.godwit.v1"
	firstPort   = 9100 // of the beacons of the first guest
	interval    = "200ms"
	memory      = "96MiB"
	stateSize   = "1g"
)

// world is three nodes, each a controller, an etcd, a registry, and guests.
type world struct {
	*harness.Harness
	opts    Options
	result  *Result
	guests  []*guest
	records map[*harness.Node]*record.Client
	daemons []*daemon
	clocks  string // directory of the nodes' clocks
	empty   map[*harness.Node]harness.Inventory
	stored  []string // in the registry before the first VM
	windows []window // in which the store was an old one; guarded as the result is
	steps   *tail
	sockets []net.PacketConn

	calls    sync.WaitGroup // verbs under way
	heals    sync.WaitGroup // faults that last
	drains   atomic.Int64   // that have begun
	draining atomic.Int64   // that have not ended
	orders   atomic.Int64
	ran      []atomic.Int64 // VMs that were run, by the number of their node
	taken    exclusive
	old      atomic.Bool // a copy of the store was made that will be put back
}

// small nodes keep no packs of a VM that has gone.
func small(*harness.Node) string { return "cache.packs = 0\n" }

func newWorld(ctx context.Context, opts Options, result *Result, p *programs) (w *world, err error) {
	if err := os.Setenv(ClockEnv, p.clocks); err != nil {
		return nil, err
	}
	h, err := harness.Start(ctx, harness.Options{Nodes: 3, Registry: harness.PlainHTTP, Godwitd: true, Etcd: true,
		Images: true, Debug: true, CRI: true, Containerd: fmt.Sprintf(criConfig, p.runc),
		Programs: p.dir, Config: small, State: stateSize, Log: opts.Log})
	if err != nil {
		return nil, err
	}
	w = &world{Harness: h, opts: opts, result: result, clocks: p.clocks, ran: make([]atomic.Int64, len(h.Nodes())),
		records: map[*harness.Node]*record.Client{}, empty: map[*harness.Node]harness.Inventory{}, steps: &tail{}}
	w.daemons = w.daemonsOf()
	defer func() {
		if err != nil {
			h.KeepIn(opts.Keep)
			err = errors.Join(err, w.close())
		}
	}()
	tar := filepath.Join(h.Dir, "probe.tar")
	if _, err := h.Node(0).RunCtr(ctx, "images", "export", "--local", tar, images.Probe); err != nil {
		return w, err
	}
	for i, n := range h.Nodes() {
		w.records[n] = record.Local(filepath.Join(n.Dir, "run", "godwitd.sock"))
		if i > 0 {
			if err := n.Import(ctx, tar, ""); err != nil {
				return w, err
			}
		}
		if _, err := n.RunCtr(ctx, "-n", criNamespace, "images", "import", "--local", tar); err != nil {
			return w, err
		}
	}
	for i := range opts.VMs {
		if err := w.addGuest(i); err != nil {
			return w, err
		}
	}
	for i := range opts.Pods {
		if err := w.addPod(i); err != nil {
			return w, err
		}
	}
	return w, w.measure(ctx)
}

func (w *world) addGuest(i int) error {
	g := newGuest(fmt.Sprintf("vm%02d", i), firstPort+i)
	w.guests = append(w.guests, g)
	return w.hear(g)
}

func newGuest(name string, port int) *guest {
	return &guest{name: name, port: strconv.Itoa(port), heard: map[string]sighting{}, retired: map[string]time.Time{}}
}

// hear listens for the beacons of a guest, until the world is closed.
func (w *world) hear(g *guest) error {
	conn, err := w.ListenPacket(net.JoinHostPort(harness.Gateway, g.port))
	if err != nil {
		return err
	}
	w.sockets = append(w.sockets, conn)
	go g.listen(conn)
	return nil
}

func (w *world) close() error {
	for _, c := range w.records {
		c.Close()
	}
	for _, c := range w.sockets {
		c.Close()
	}
	return w.Close()
}

func (w *world) log(format string, args ...any) { w.opts.Log(format, args...) }

// look answers all records, by the first controller that answers.
func (w *world) look(ctx context.Context) (all map[string]*nodev1.Record, err error) {
	var errs []error
	for _, n := range w.Nodes() {
		ctx, cancel := context.WithTimeout(ctx, askBound)
		resp, err := w.records[n].List(ctx, &nodev1.ListRequest{})
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("controller %s: %w", n.Name, err))
			continue
		}
		all = map[string]*nodev1.Record{}
		for _, rec := range resp.GetRecords() {
			all[rec.GetVm().GetId()] = rec
		}
		return all, nil
	}
	return nil, errors.Join(errs...)
}

func (w *world) node(name string) *harness.Node {
	i := slices.IndexFunc(w.Nodes(), func(n *harness.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return w.Node(i)
}

// at picks one of a list by a number in [0, 1).
func at[T any](all []T, pick float64) (one T, ok bool) {
	if len(all) == 0 {
		return one, false
	}
	return all[int(pick*float64(len(all)))], true
}

// tail keeps the last steps.
type tail struct {
	mu  sync.Mutex
	all []string
}

const tailSteps = 10

func (t *tail) add(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, step)
	t.all = t.all[max(0, len(t.all)-tailSteps):]
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// exclusive is what only one fault at a time may have, by name.
type exclusive struct{ held sync.Map }

func (e *exclusive) take(name string) (free func(), ok bool) {
	if _, taken := e.held.LoadOrStore(name, true); taken {
		return nil, false
	}
	return func() { e.held.Delete(name) }, true
}
