package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

var vm = &nodev1.VM{Namespace: "default", Id: "web"}

// States of a VM on a node.
const (
	gone     = ""
	runs     = "running"
	paused   = "paused"
	stopped  = "stopped"  // its VMM, by the vote
	aborting = "aborting" // it stands still until its host lets it run
	created  = "created"
	fenced   = "fenced" // ended before it ran
)

// fault is what one call comes to. after lets the call have its effect and loses the
// answer. A kill ends the engine in that moment.
type fault struct {
	call  int // counts from 1; 0: none
	after bool
	err   error
	kill  func()
}

// world is one VM, its controller and its nodes. All parts of an engine count their
// calls here, so that any one of them can fail.
type world struct {
	t       *testing.T
	records nodev1.RecordsService
	uid     string // of the VM

	mu         sync.Mutex
	state      map[string]string // of the VM, by node
	ref        *machinev1.Ref    // of the capture at the source
	arrival    *machinev1.Ref    // of the order that a destination was made for
	gens       map[string]uint64 // that the VM runs under, by node
	ends       map[string]int    // how often the VM was ended, by node
	ended      string            // why a VM was ended that was somebody else's
	digest     string            // that the capture answered
	blobs      map[string]bool   // digests in the registry
	dropped    []string          // tags
	hang       map[string]bool   // calls that end with their context only
	tags       []Leftover        // of the VM's repository
	removals   int               // of containers
	made       int64             // when the task of the container was made that was marked last
	files      int               // of its directory that nothing lists
	forsaken   []string          // uids of layout directories without a tag
	broken     []string          // violations
	log        []string          // calls, in order
	fault      fault
	always     map[string]error // by name of the call
	captures   int
	execs      bool                     // of the last capture
	startFails *machinev1.QueryResponse // a Start that commits, fails and leaves this
	removed    bool                     // a Start that commits is killed, and its task deleted
	deletes    bool                     // so is the task that is seen stopped, after the look
	live       bool                     // shims can send
	pod        bool                     // the VM is one
	awaits     int                      // times that a destination waits for the pod's containers
	probed     int                      // offers that name an exec which runs
	probes     int                      // calls of Send that do
	obstacles  []string                 // at any destination of a move
	cordoned   string                   // a node
	apart      bool                     // each node has a store of its own, all of one name
	silent     map[string]bool          // nodes that do not answer
	fences     bool                     // a destination never runs what it has
	loses      bool                     // a destination that ran and died
	progress   *machinev1.QueryResponse // of the source that sends
	waitInside chan struct{}            // a capture that has begun waits until its context ends
	thaws      int                      // Aborts that come before the VM runs: its host lacks descriptors
	thawing    error                    // what they answer
	early      bool                     // the VM's shim is of a build that takes no record later
	pods       *pods                    // that the controller places VMs in; nil: each order names its node
	wakes      *Engine                  // of the node that a wake is placed on
	told       Events                   // of all engines; nil: no one listens
}

// unrecorded is a world whose VM was started on n1 while that kept no records.
func unrecorded(t *testing.T) *world {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	w := &world{t: t, records: controller.New(st), state: map[string]string{}, gens: map[string]uint64{},
		ends: map[string]int{}, blobs: map[string]bool{}, always: map[string]error{}}
	w.uid, w.state["n1"] = uuid.NewString(), runs
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := unrecorded(t)
	rec, err := w.records.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vm})
	if err == nil {
		_, err = w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "n1", Generation: rec.Generation})
	}
	if err != nil {
		t.Fatal(err)
	}
	w.uid, w.gens["n1"] = rec.GetUid(), w.record().GetGeneration()
	return w
}

// set is the only way to change the VM, and watches over I1 and I3.
func (w *world) set(node, state string) {
	if state == gone && w.state[node] != gone {
		w.ends[node]++
	}
	w.state[node] = state
	runners, copies := 0, len(w.blobs)
	for _, s := range w.state {
		if s == runs {
			runners++
		}
		if s == runs || s == paused || s == stopped || s == aborting {
			copies++
		}
	}
	if runners > 1 {
		w.broken = append(w.broken, fmt.Sprintf("I1: two runners: %v", w.state))
	}
	if copies == 0 {
		w.broken = append(w.broken, fmt.Sprintf("I3: no copy: %v", w.state))
	}
}

// do runs effect as the call named name of the engine, or fails it.
func (w *world) do(ctx context.Context, name string, effect func() error) error {
	w.mu.Lock()
	w.log = append(w.log, name)
	hit, f, constant, hangs := len(w.log) == w.fault.call, w.fault, w.always[name], w.hang[name]
	if errdefs.IsNotFound(f.err) && slices.Contains([]string{"Release", "Abort", "Query", "Discard", "Revert"}, name) {
		hit = false // a shim that says so tells the truth
	}
	w.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if constant != nil {
		return fmt.Errorf("%s: %w", name, constant)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if hit && !f.after {
		return f.strike(name)
	}
	w.mu.Lock()
	err := effect()
	w.mu.Unlock()
	if hit {
		return f.strike(name)
	}
	return err
}

func (w *world) engine(node string) *Engine {
	n := &machine{world: w, node: node}
	var peers Peers
	var places Places
	var events Events = Sinks{}
	if w.told != nil {
		events = w.told
	}
	if node == "c" {
		peers = sides{w}
		if w.pods != nil {
			places = w.pods
		}
	}
	return New(Parts{
		Peers: peers, Places: places,
		Records: &flaky{RecordsService: w.records, world: w}, Machines: n, Observer: n, Tasks: (*tasks)(n), Departed: n,
		Snapshots: n, Events: events,
	}, Options{
		Node: node, Repository: func(rec *nodev1.Record) string { return cmp.Or(rec.Prefix, "r") + "/" + rec.Uid },
		Operation: time.Minute, RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, Patience: 50 * time.Millisecond,
		Again: time.Millisecond, AgainMax: 5 * time.Millisecond,
	})
}

// machine is what the engine of one node works on.
type machine struct {
	*world
	node string
}

func stale(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}

func (n *machine) Capture(ctx context.Context, _ *nodev1.VM,
	req *machinev1.CaptureRequest) (resp *machinev1.CaptureResponse, err error) {
	err = n.do(ctx, "Capture", func() error {
		if n.waitInside != nil {
			close(n.waitInside)
			n.waitInside = nil
			n.mu.Unlock()
			<-ctx.Done()
			n.mu.Lock()
			return ctx.Err()
		}
		switch {
		// made, and the VM has gone on
		case req.GetCheckpoint() && n.digest != "" && n.ref.GetOperation() == req.Ref.Operation:
		case n.state[n.node] == runs:
			n.captures++
			if n.gens[n.node] == 0 {
				n.gens[n.node] = req.Ref.Generation
			}
			n.execs = req.GetExecs()
			n.digest = fmt.Sprintf("sha256:%064d", n.captures)
			n.ref = req.Ref
			n.blobs[n.digest] = true
			if !req.GetCheckpoint() {
				n.set(n.node, paused)
			}
		case n.ref.GetOperation() != req.Ref.Operation:
			return stale("capture: VM is %s", n.state[n.node])
		}
		resp = &machinev1.CaptureResponse{Digest: n.digest, PauseMs: 12, TotalBytes: 4096, GoneOn: req.GetCheckpoint()}
		return nil
	})
	return resp, err
}

func (n *machine) Vote(ctx context.Context, _ *nodev1.VM, req *machinev1.VoteRequest) (resp *machinev1.VoteResponse,
	err error) {
	err = n.do(ctx, "Vote", func() error {
		if n.ref.GetOperation() != req.Ref.Operation || n.state[n.node] != paused && n.state[n.node] != stopped {
			return stale("vote: VM is %s", n.state[n.node])
		}
		n.set(n.node, stopped)
		resp = &machinev1.VoteResponse{Digest: n.digest}
		return nil
	})
	return resp, err
}

// Abort ends a destination that has not run, gives a source its VM back, and is no order for what runs.
func (n *machine) Abort(ctx context.Context, _ *nodev1.VM, req *machinev1.AbortRequest) error {
	return n.do(ctx, "Abort", func() error {
		switch {
		case n.state[n.node] == gone:
			return fmt.Errorf("abort: %w", errdefs.ErrNotFound)
		case n.state[n.node] == created && proto.Equal(n.arrival, req.GetRef()):
			n.set(n.node, fenced)
			return nil
		case n.state[n.node] == created || n.state[n.node] == fenced || n.state[n.node] == runs:
			return nil
		}
		if n.ref = nil; n.thaws > 0 {
			n.thaws--
			n.set(n.node, aborting)
			return fmt.Errorf("abort: it is being given back: %w", n.thawing)
		}
		n.set(n.node, runs)
		return nil
	})
}

func (n *machine) Release(ctx context.Context, _ *nodev1.VM, req *machinev1.ReleaseRequest) error {
	return n.do(ctx, "Release", func() error {
		if n.state[n.node] == runs || n.state[n.node] == paused {
			n.broken = append(n.broken, "R3: release of a VM that has not voted")
		}
		if n.state[n.node] == gone {
			return fmt.Errorf("release: %w", errdefs.ErrNotFound)
		}
		n.addresses(req)
		n.set(n.node, gone)
		return nil
	})
}

func (n *machine) Query(ctx context.Context, _ *nodev1.VM) (resp *machinev1.QueryResponse, err error) {
	err = n.do(ctx, "Query", func() error {
		if n.state[n.node] == gone {
			return fmt.Errorf("query: %w", errdefs.ErrNotFound)
		}
		if n.startFails != nil {
			resp = n.startFails
			n.deleteIf(ctx, n.deletes)
			return nil
		}
		if n.progress != nil && n.node == "n1" {
			resp = n.progress
			return nil
		}
		resp = &machinev1.QueryResponse{State: n.state[n.node], Record: recordReady, Ref: n.arrival, Uid: n.uid,
			Enrolls: !n.early}
		if n.state[n.node] == fenced {
			resp.Record = recordFenced
		}
		if n.state[n.node] == runs || n.state[n.node] == aborting {
			resp.Record, resp.Generation, resp.Ref = recordOwn, n.gens[n.node], nil
		}
		if n.state[n.node] == paused {
			resp.Record, resp.Generation, resp.Ref = recordSending, n.gens[n.node], n.ref
		}
		if n.state[n.node] == stopped {
			resp.Record, resp.Ref, resp.Digest, resp.CreatedUnixNano = recordPrepared, n.ref, n.digest, taskMade
		}
		return nil
	})
	return resp, err
}

// Revert wants the record's word, as shims do.
func (n *machine) Revert(ctx context.Context, _ *nodev1.VM, req *machinev1.RevertRequest) (*machinev1.RevertResponse,
	error) {
	err := n.do(ctx, "Revert", func() error {
		rec, err := n.records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil || rec.GetOwner().GetNode() != n.node || rec.GetGeneration() != req.GetOwnerGeneration() {
			n.broken = append(n.broken, fmt.Sprintf("revert without a commit: %v, %v", rec, err))
		}
		n.ref, n.gens[n.node] = nil, req.GetOwnerGeneration()
		n.set(n.node, runs)
		return nil
	})
	return &machinev1.RevertResponse{}, err
}

func (n *machine) EndSuperseded(ctx context.Context, _ *nodev1.VM, generation uint64, reason string) error {
	return n.do(ctx, "EndSuperseded", func() error {
		if n.gens[n.node] >= generation {
			return stale("end: it runs under %d", n.gens[n.node])
		}
		n.state[n.node], n.ended = gone, reason
		return nil
	})
}

func (n *machine) MarkDeparted(ctx context.Context, _ *nodev1.VM, created int64, _, _ string) error {
	return n.do(ctx, "MarkDeparted", func() error { n.made = created; return nil })
}

func (n *machine) CleanDeparted(ctx context.Context, _ *nodev1.VM, _, _ string) error {
	return n.do(ctx, "CleanDeparted", func() error { return nil })
}

func (n *machine) Exists(ctx context.Context, _, digest string) (there bool, err error) {
	err = n.do(ctx, "Exists", func() error { there = n.blobs[digest]; return nil })
	return there, err
}

func (n *machine) Accepts(ctx context.Context, _ string) error {
	return n.do(ctx, "Accepts", func() error {
		if !slices.Contains(slices.Collect(maps.Values(n.state)), runs) {
			n.broken = append(n.broken, "the store is asked while the VM waits")
		}
		return nil
	})
}

func (n *machine) Drop(ctx context.Context, _, digest, tag, _ string) error {
	return n.do(ctx, "Drop", func() error {
		n.dropped = append(n.dropped, tag)
		delete(n.blobs, digest)
		return nil
	})
}

func (n *machine) Collect(ctx context.Context, _ string, _ time.Duration, dry bool) (files int, bytes uint64,
	err error) {
	err = n.do(ctx, "Collect", func() error {
		files, bytes = n.files, uint64(n.files)
		if !dry {
			n.files = 0
		}
		return nil
	})
	return files, bytes, err
}
