// Package engine drives the operations of one node: hibernate and checkpoint at the VM's
// node, wake at its destination, moves at the controller. An operation is a straight list
// of steps, one for each phase (hibernate.go, checkpoint.go, wake.go, move.go). Which one is next follows
// from the record alone, so that a restarted engine goes on where the last one stopped. A round compares
// records with what shims say, and finishes what is left (round_*.go).
package engine

import (
	"context"
	"sync"
	"time"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/turn"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Machines orders the shims of this node's VMs. Every call is idempotent for its ref.
// NotFound means that nothing of the VM is left on this node, a shim that does not
// answer is Unavailable.
type Machines interface {
	Capture(ctx context.Context, vm *nodev1.VM, req *machinev1.CaptureRequest) (*machinev1.CaptureResponse, error)
	Vote(ctx context.Context, vm *nodev1.VM, req *machinev1.VoteRequest) (*machinev1.VoteResponse, error)
	Abort(ctx context.Context, vm *nodev1.VM, req *machinev1.AbortRequest) error
	Release(ctx context.Context, vm *nodev1.VM, req *machinev1.ReleaseRequest) error
	Revert(ctx context.Context, vm *nodev1.VM, req *machinev1.RevertRequest) (*machinev1.RevertResponse, error)
	// EndSuperseded ends a VM that its record has given to somebody else under that generation.
	EndSuperseded(ctx context.Context, vm *nodev1.VM, generation uint64, reason string) error
}

// Observer asks the shims.
type Observer interface {
	Query(ctx context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error)
}

// Restore is what a wake orders of Tasks.
type Restore struct {
	Intent     record.Intent
	Repository string
	Stdio      string // log URI; empty: as configured
}

// Tasks makes this node's containerd tasks.
type Tasks interface {
	// Create makes container, network and task, CREATED, restored and paused. A task
	// that the same intent has made before is a success.
	Create(ctx context.Context, vm *nodev1.VM, order Restore) error
	// Start lets the VM run, after its shim has committed; started before, it succeeds.
	Start(ctx context.Context, vm *nodev1.VM) error
	// Running reports whether the task has been started and not ended.
	Running(ctx context.Context, vm *nodev1.VM) (bool, error)
	// Undo removes what Create of this order made, and no other task.
	Undo(ctx context.Context, vm *nodev1.VM, order Restore) error
	// Clear does so where the task has ended. One that has not is left alone, which is an error: a
	// Create of the order that is under way ends, and a later Clear finds its task ended.
	Clear(ctx context.Context, vm *nodev1.VM, order Restore) error
}

// Departed cleans up what containerd holds of a VM that has left this node.
type Departed interface {
	// MarkDeparted marks the container with the digest, and with the node that owns the VM now if
	// there is one, before its task ends: what restarts containers that have ended leaves
	// this one alone. Only while a shim of the VM answers is there a container that is surely
	// the VM's: one that is no younger than its task, whose Create began at created (unix ns;
	// 0: the shim does not say, and every container counts as the VM's).
	MarkDeparted(ctx context.Context, vm *nodev1.VM, created int64, digest, owner string) error
	// CleanDeparted ends them. A container that MarkDeparted has not marked so was made anew: it stays as it
	// is, with its task.
	CleanDeparted(ctx context.Context, vm *nodev1.VM, digest, owner string) error
	// RemoveDeparted removes a container that MarkDeparted has marked with the digest, of a VM that was deleted.
	RemoveDeparted(ctx context.Context, vm *nodev1.VM, digest string) error
}

// Snapshots is the store of snapshots.
type Snapshots interface {
	// Exists answers false only if the store said so.
	Exists(ctx context.Context, repository, digest string) (bool, error)
	// Readable fails unless the store itself gives back all of a snapshot that says what it is
	// made of.
	Readable(ctx context.Context, repository, digest string) error
	// Accepts fails if the store takes nothing now.
	Accepts(ctx context.Context, repository string) error
	Deleter
}

// Deleter is the half of the store for which no caller waits.
type Deleter interface {
	// Reaches reports whether this node can delete a snapshot of its own store, and say that it
	// is gone: directories of one path may be each node's own.
	Reaches(ctx context.Context, ref *nodev1.SnapshotRef) (bool, error)
	// Drop deletes a snapshot of the VM of that uid, and its tag; what is not there is deleted. Where
	// it is not of that VM it answers ErrForeign, and deletes nothing.
	Drop(ctx context.Context, repository, digest, tag, uid string) error
	// Leftovers lists what stands under the tags of a repository. What is not godwit's is
	// not in it.
	Leftovers(ctx context.Context, repository string) ([]Leftover, error)
	// Collect removes the files of a layout directory that nothing lists and that are
	// older than grace. Of a registry it removes nothing.
	Collect(ctx context.Context, repository string, grace time.Duration, dry bool) (files int, bytes uint64, err error)
	// Abandoned does that in this node's own layouts, in addition to the repositories of the VMs that are known: those
	// from which all snapshots were deleted, and golden snapshots'.
	Abandoned(ctx context.Context, known func(uid string) bool, grace time.Duration, dry bool) ([]Freed, error)
}

// Golden knows golden snapshots. It is nil where no golden snapshots are known.
type Golden interface {
	// Golden answers the digest of the one whose pages a VM's snapshot may refer to; empty:
	// there is none, or none that can be used now.
	Golden(ctx context.Context, vm *nodev1.VM) string
}

// Parts are what the engine works on.
type Parts struct {
	Records   nodev1.RecordsService
	Machines  Machines
	Observer  Observer
	Tasks     Tasks
	Departed  Departed
	Snapshots Snapshots
	Golden    Golden
	Events    Events
	Peers     Peers  // nil: this node is not the controller, and drives no moves
	Places    Places // of the controller; nil: each operation is opened with its destination
	Steps     []Steps
	Store     Store // nil: it was never put back from a copy
	// Elsewhere refuses a snapshot that lies where this node never reads it; nil: there is none.
	Elsewhere func(ctx context.Context, vm *nodev1.VM, ref *nodev1.SnapshotRef) error
}

// Engine of one node: it takes orders, and drives operations (operation_). What the node looks at in
// rounds is rounds' (round_), what may be deleted retention's (snapshot_), and which move begins
// placement's (move_queue.go). deletions (delete.go) and checkpoints (checkpoint.go) order operations
// themselves.
//
// It lives until Close. An operation goes on after the call that ordered it, and after the engine: Resume takes it
// up again.
type Engine struct {
	*core
	rounds      *rounds
	retention   *retention
	placement   *placement
	deletions   *deletions
	checkpoints *checkpoints

	life       context.Context // of the engine's own work, ended by Close
	close      context.CancelFunc
	wg         sync.WaitGroup
	background func(func()) // what goes on after an order; Close waits for it

	mu   sync.Mutex
	runs map[string]*run // by operation id
}

// New returns an engine that works until Close. Call Resume next.
func New(parts Parts, opts Options) *Engine {
	life, cancel := context.WithCancel(context.Background())
	c := &core{Parts: parts, opts: opts.withDefaults(), now: time.Now, prompt: promptBound}
	e := &Engine{
		core: c, rounds: newRounds(c), retention: newRetention(c), placement: &placement{core: c, giving: turn.New()},
		life: life, close: cancel, runs: map[string]*run{},
	}
	e.deletions, e.checkpoints = &deletions{core: c, operations: e, open: map[string]bool{}},
		&checkpoints{core: c, checkpointer: e}
	e.background = e.wg.Go
	return e
}

// Clean is retention.Clean.
func (e *Engine) Clean(ctx context.Context, vm *nodev1.VM) error { return e.retention.Clean(ctx, vm) }

// Sweep is retention.Sweep.
func (e *Engine) Sweep(ctx context.Context) error { return e.retention.Sweep(ctx) }

// Scan is retention.Scan.
func (e *Engine) Scan(ctx context.Context) error { return e.retention.Scan(ctx) }

// Prune is retention.Prune.
func (e *Engine) Prune(ctx context.Context, req *nodev1.PruneRequest) (*nodev1.PruneResponse, error) {
	return e.retention.Prune(ctx, req)
}

// Choose is placement.Choose.
func (e *Engine) Choose(ctx context.Context, but ...string) (string, error) {
	return e.placement.Choose(ctx, but...)
}

// Close stops between two steps and waits. What was begun stays open in the records.
func (e *Engine) Close() {
	e.mu.Lock()
	e.close()
	e.mu.Unlock()
	e.wg.Wait()
}

// Resume takes up the open operations of this node.
func (e *Engine) Resume(ctx context.Context) error {
	all, err := e.ours(ctx)
	if err != nil {
		return err
	}
	e.resume(all)
	return nil
}

func (e *Engine) resume(all []*nodev1.Record) {
	for _, rec := range all {
		if e.drives(rec.GetOperation()) {
			e.takeUp(rec.GetOperation(), rec.GetUid())
		}
	}
}

// ours are the records that concern this node; those of open moves concern the controller's too,
// for it drives them. Every node asks for them several times a minute.
func (e *Engine) ours(ctx context.Context) ([]*nodev1.Record, error) {
	all, err := e.Records.List(ctx, &nodev1.ListRequest{Node: e.opts.Node, Moves: e.Peers != nil})
	return all.GetRecords(), err
}

// drives reports whether this node's engine takes the steps of op. A shim takes the steps of a wake that it opened
// itself, for a Create that had not been announced.
func (e *Engine) drives(op *nodev1.Operation) bool {
	if !op.GetManaged() {
		return false
	}
	if record.Unplaced(op) {
		return e.Peers != nil && e.Peers.Drives(op.GetDriver())
	}
	switch op.GetKind() {
	case nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_CHECKPOINT:
		return op.GetSource() == e.opts.Node
	case nodev1.Kind_KIND_WAKE:
		return op.GetDestination() == e.opts.Node
	case nodev1.Kind_KIND_MIGRATE:
		return e.Peers != nil && e.Peers.Drives(op.GetDriver())
	default:
		return false
	}
}

// takeUp drives an operation that was opened before. How long ago that is the records say, by the clock of their
// host: if that is later than now by this node's clock, it was just now.
func (e *Engine) takeUp(op *nodev1.Operation, uid string) *run {
	since, now := time.Unix(0, op.GetOpenedUnixNano()), time.Now()
	if op.GetByPlace() && op.GetStartedUnixNano() != 0 { // its time counts from its place on
		since = time.Unix(0, op.GetStartedUnixNano())
	}
	if since.After(now) {
		since = now
	}
	return e.start(op, uid, since)
}

// start drives op, which was opened then, in the background, once. uid is of its record; empty: it is not known.
func (e *Engine) start(op *nodev1.Operation, uid string, since time.Time) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.runs[op.GetId()]; r != nil {
		return r
	}
	r := &run{vm: op.GetVm(), uid: uid, id: op.GetId(), kind: op.GetKind(), since: since, done: make(chan struct{})}
	begun := e.spawn(func(ctx context.Context) {
		defer close(r.done)
		e.drive(ctx, r)
		e.mu.Lock()
		delete(e.runs, r.id)
		e.mu.Unlock()
	})
	if !begun {
		return nil
	}
	e.runs[r.id] = r
	return r
}

// work implements operations.
func (e *Engine) work(do func(ctx context.Context)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spawn(do)
}

// spawn does something until Close; false: it was closed. e.mu is held, as Close holds it.
func (e *Engine) spawn(do func(ctx context.Context)) bool {
	if e.life.Err() != nil {
		return false
	}
	e.background(func() { do(e.life) })
	return true
}

// current implements operations. A run that is missing is that of an order whose answer was lost.
func (e *Engine) current(op *nodev1.Operation) *run {
	if r := e.running(op.GetId()); r != nil || !e.drives(op) {
		return r
	}
	return e.takeUp(op, "")
}

// running answers the run of an operation, nil if there is none.
func (e *Engine) running(id string) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}
