package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ledger answers pending deletions as a controller does, and notes who clears them.
type ledger struct {
	nodev1.RecordsService
	Snapshots
	pending []*nodev1.Owed
	cleared []string
}

func (l *ledger) Owed(context.Context, *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	return &nodev1.OwedResponse{Owed: slices.Clone(l.pending)}, nil
}

func (l *ledger) Clear(_ context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	l.pending = slices.DeleteFunc(l.pending, func(o *nodev1.Owed) bool {
		return o.GetSnapshot().GetDigest() == req.GetDigest()
	})
	return &nodev1.ClearResponse{}, nil
}

func (l *ledger) Reaches(context.Context, *nodev1.SnapshotRef) (bool, error) { return true, nil }

func (l *ledger) Drop(_ context.Context, _, digest, _, _ string) error {
	l.cleared = append(l.cleared, digest)
	return nil
}

// fleet are peers of which some are up, and one of several controllers.
type fleet struct {
	Peers
	up    map[string]bool // of those that are known
	leads bool
}

func (f fleet) Drives(string) bool { return f.leads }

func (f fleet) Node(name string) (*nodev1.NodeInfo, error) {
	up, known := f.up[name]
	if !known {
		return nil, errdefs.ErrNotFound
	}
	return &nodev1.NodeInfo{Name: name, Up: up, SeenUnixNano: time.Now().Add(-absentDeleter).UnixNano()}, nil
}

// Each pending deletion is done once. The node that it names does it, else the node that made the snapshot, else
// one controller. The controller does it too for a deleter that is gone for long, or that has not done it for
// longer.
func TestEachDeletionHasOneDeleter(t *testing.T) {
	const first = time.Second
	deletion := func(i int, payer, maker string, age time.Duration) *nodev1.Owed {
		ref := &nodev1.SnapshotRef{Repository: "x", Digest: fmt.Sprint("d", i), Node: maker}
		return &nodev1.Owed{Vm: vm, Payer: payer, Snapshot: ref, SinceUnixNano: time.Now().Add(-age).UnixNano()}
	}
	for i, tt := range []struct {
		deletion *nodev1.Owed
		want     string // who deletes in the rounds of all
	}{
		{deletion(0, "n1", "n2", first), "n1"},
		{deletion(1, "", "n2", first), "n2"},
		{deletion(2, "", "", first), "c"},
		{deletion(3, "gone", "n1", first), ""},
		{deletion(4, "gone", "n1", absentDeleter), "c"},
		{deletion(5, "", "silent", absentDeleter), "c"},
		{deletion(6, "", "silent", first), ""},
		{deletion(7, "", "up", absentDeleter), ""},
		{deletion(8, "", "up", idleDeleter), "c"},
	} {
		w := newWorld(t)
		l, who := &ledger{RecordsService: w.records, pending: []*nodev1.Owed{tt.deletion}}, ""
		for _, node := range []string{"n3", "c2", "c", "n1", "n2", "c2", "c"} {
			e := w.start(node)
			e.Records, e.Snapshots = l, l
			e.opts.Repository = func(*nodev1.Record) string { return "x" }
			if e.opts.Retention.Scans = node[0] == 'c'; e.opts.Retention.Scans {
				e.Peers = fleet{up: map[string]bool{"up": true, "silent": false, "n1": true, "n2": true}, leads: node == "c"}
			}
			before := len(l.cleared)
			if err := e.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(l.cleared) > before {
				who += node
			}
		}
		if who != tt.want {
			t.Errorf("deletion %d is done by %q, want %q", i, who, tt.want)
		}
	}
}
