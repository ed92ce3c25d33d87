package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// keeper is the node where a VM has ended, and what it says of the container.
type keeper struct {
	Peers
	nodev1.PeerService
	says nodev1.Presence
	err  error
	away error
	asks int
}

func (k *keeper) Peer(string) (nodev1.PeerService, error) { return k, k.away }

func (k *keeper) Drives(string) bool { return true }

func (k *keeper) Query(_ context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	if req.GetContainer() {
		k.asks++
	}
	return &nodev1.PeerState{Container: k.says}, k.err
}

// ended is a VM that slept, woke on n1 and has ended there, and an engine of the controller.
func endedVM(t *testing.T, k *keeper) (*world, *Engine) {
	t.Helper()
	w := asleep(t)
	e := w.start("n1")
	if err := w.wake(e, "w"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("w"); op.Phase != nodev1.Phase_PHASE_SUCCEEDED {
		t.Fatalf("operation %v", op)
	}
	<-e.idle("w")
	if _, err := w.records.Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "n1",
		Generation: w.record().GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	e.Peers = k
	e.opts.Retention = Retention{Keep: 1, Ended: time.Millisecond, Grace: time.Hour, Scans: true}
	ahead := time.Duration(0)
	e.now = func() time.Time { ahead += time.Minute; return time.Now().Add(ahead) }
	return w, e
}

func sweeps(t *testing.T, e *Engine, n int) {
	t.Helper()
	for range n {
		if err := e.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // the record's clock is the host's
	}
}

// The snapshot that a deleted container woke from goes. It stays while its time has not come, while the container
// is there, while no node can say, and where no time is set.
func TestEndedVM(t *testing.T) {
	for name, c := range map[string]struct {
		keeper keeper
		edit   func(*Retention)
		goes   bool
	}{
		"deleted":      {keeper{says: nodev1.Presence_PRESENCE_NONE}, nil, true},
		"stopped":      {keeper{says: nodev1.Presence_PRESENCE_THERE}, nil, false},
		"old node":     {keeper{}, nil, false},
		"node fails":   {keeper{says: nodev1.Presence_PRESENCE_NONE, err: errors.New("no answer")}, nil, false},
		"node is away": {keeper{says: nodev1.Presence_PRESENCE_NONE, away: &LinkError{Node: "n1"}}, nil, false},
		"early":        {keeper{says: nodev1.Presence_PRESENCE_NONE}, func(r *Retention) { r.Ended = 24 * time.Hour }, false},
		"young":        {keeper{says: nodev1.Presence_PRESENCE_NONE}, func(r *Retention) { r.For = 24 * time.Hour }, false},
		"off":          {keeper{says: nodev1.Presence_PRESENCE_NONE}, func(r *Retention) { r.Ended = 0 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, e := endedVM(t, &c.keeper)
			if c.edit != nil {
				c.edit(&e.opts.Retention)
			}
			sweeps(t, e, 5)
			if left := len(w.record().GetSnapshots()); (left == 0) != c.goes || len(w.dropped) != 1-left ||
				len(w.pendingDeletions()) != 0 {
				t.Errorf("%d snapshots are left, dropped %v, owed %v", left, w.dropped, w.pendingDeletions())
			}
			if c.keeper.asks > 1 {
				t.Errorf("its node was asked %d times", c.keeper.asks)
			}
		})
	}
}

// A container that is started again meanwhile is a VM with a claim of its own: its end counts
// anew. A prune tells what is due, and deletes it.
func TestEndedVMRunsAgain(t *testing.T) {
	k := &keeper{says: nodev1.Presence_PRESENCE_NONE}
	w, e := endedVM(t, k)
	e.opts.Retention.Ended = time.Hour
	sweeps(t, e, 1)
	if w.record().GetEnded().GetSinceUnixNano() == 0 {
		t.Fatal("its end is not noted")
	}
	if _, err := w.records.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: "n1",
		Generation: w.record().GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	e.opts.Retention.Ended = time.Millisecond
	sweeps(t, e, 2)
	if len(w.record().GetSnapshots()) != 1 {
		t.Fatal("the snapshot of a VM that runs is gone")
	}
	if _, err := w.records.Disown(t.Context(), &nodev1.DisownRequest{Vm: vm, Node: "n1",
		Generation: w.record().GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	k.says = nodev1.Presence_PRESENCE_THERE
	sweeps(t, e, 2)
	prune := func(dry bool) int {
		t.Helper()
		resp, err := e.Prune(t.Context(), &nodev1.PruneRequest{DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range resp.GetPruned() {
			if p.GetError() != "" {
				t.Errorf("pruned: %v", p)
			}
		}
		return len(resp.GetPruned())
	}
	if n := prune(false); n != 0 {
		t.Errorf("%d pruned of a container that is there", n)
	}
	k.says = nodev1.Presence_PRESENCE_NONE
	if prune(true) != 1 || len(w.record().GetSnapshots()) != 1 || prune(false) != 1 ||
		len(w.record().GetSnapshots()) != 0 || len(w.dropped) != 1 {
		t.Errorf("after the prunes: %v, dropped %v", w.record(), w.dropped)
	}
}

// cut is a node whose answer comes after the sweep that asks has ended.
type cut struct {
	*keeper
	end context.CancelFunc
}

func (c *cut) Peer(string) (nodev1.PeerService, error) { return c, c.away }

func (c *cut) Query(ctx context.Context, req *nodev1.PeerRef) (*nodev1.PeerState, error) {
	if req.GetContainer() {
		c.end()
	}
	return c.keeper.Query(ctx, req)
}

// A container whose question was cut short with its sweep is asked for by the next one, not only hours later.
func TestQuestionThatWasCut(t *testing.T) {
	k := &keeper{says: nodev1.Presence_PRESENCE_NONE, err: context.Canceled}
	w, e := endedVM(t, k)
	sweeps(t, e, 1) // notes the end
	ctx, cancel := context.WithCancel(t.Context())
	e.Peers = &cut{k, cancel}
	if err := e.Sweep(ctx); !errors.Is(err, context.Canceled) || k.asks != 1 {
		t.Fatalf("%v, asked %d times", err, k.asks)
	}
	k.err, e.Peers = nil, k
	sweeps(t, e, 1)
	if left := len(w.record().GetSnapshots()); k.asks != 2 || left != 0 {
		t.Errorf("asked %d times, %d snapshots are left", k.asks, left)
	}
}
