package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (n *machine) Abandoned(ctx context.Context, known func(string) bool, _ time.Duration, dry bool) (all []Freed,
	err error) {
	err = n.do(ctx, "Abandoned", func() error {
		n.forsaken = slices.DeleteFunc(n.forsaken, func(uid string) bool {
			if !known(uid) {
				all = append(all, Freed{Repository: uid, Files: 3})
			}
			return !known(uid) && !dry
		})
		return nil
	})
	return all, err
}

func (n *machine) Reaches(_ context.Context, ref *nodev1.SnapshotRef) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.apart || ref.GetNode() == n.node, nil
}

func (n *machine) Leftovers(ctx context.Context, _ string) (all []Leftover, err error) {
	err = n.do(ctx, "Leftovers", func() error { all = slices.Clone(n.tags); return nil })
	return all, err
}

// listless are records that do not answer which VMs there are.
type listless struct{ nodev1.RecordsService }

func (listless) List(context.Context, *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	return nil, errdefs.ErrUnavailable
}

// What a removed VM had in a layout is freed by the node whose layout it is. The node needs no record that tells of
// it, and does it whether it scans or not. A prune of one VM leaves it alone.
func TestAbandonedIsFreed(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	for _, scans := range []bool{true, false} {
		e.opts.Retention = Retention{Keep: 1, Grace: time.Minute, Scans: scans}
		e.retention.scan.next = time.Time{}
		mine := w.record().GetUid()
		w.forsaken = []string{mine, "gone"}
		for _, req := range []*nodev1.PruneRequest{{DryRun: true}, {Vm: vm}} {
			resp, err := e.Prune(t.Context(), req)
			if all := resp.GetPruned(); err != nil || len(w.forsaken) != 2 || len(all) > 0 && all[0].GetRepository() != "gone" ||
				len(all) == 0 && req.GetDryRun() {
				t.Errorf("%v: %v, %v", req, resp, err)
			}
		}
		if err := e.Scan(t.Context()); err != nil || len(w.forsaken) != 1 || w.forsaken[0] != mine {
			t.Errorf("scans %v: %v are left: %v", scans, w.forsaken, err)
		}
	}
	w.forsaken = []string{"gone"}
	e.Records, e.retention.scan.next = listless{e.Records}, time.Time{}
	if err := e.Scan(t.Context()); !errdefs.IsUnavailable(err) || len(w.forsaken) != 1 {
		t.Errorf("without an answer of the records %v are left: %v", w.forsaken, err)
	}
}

// pendingStore has pending deletions in two repositories, one of which is away.
type pendingStore struct {
	nodev1.RecordsService
	Snapshots
	away    string
	foreign string
	asked   []string
	cleared []string
	uids    []string
}

func (d *pendingStore) Owed(context.Context, *nodev1.OwedRequest) (resp *nodev1.OwedResponse, _ error) {
	resp = &nodev1.OwedResponse{}
	for _, at := range []string{"first", "first", "second"} {
		ref := &nodev1.SnapshotRef{Repository: at, Digest: fmt.Sprint("sha256:", len(resp.GetOwed()))}
		resp.Owed = append(resp.Owed, &nodev1.Owed{Vm: vm, Uid: "u", Snapshot: ref, Payer: "n1"})
	}
	return resp, nil
}

func (d *pendingStore) Clear(_ context.Context, req *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	d.cleared = append(d.cleared, req.GetDigest())
	return &nodev1.ClearResponse{}, nil
}

func (d *pendingStore) Drop(_ context.Context, repository, _, _, uid string) error {
	d.asked, d.uids = append(d.asked, repository), append(d.uids, uid)
	if repository == d.foreign {
		return fmt.Errorf("%w: no", ErrForeign)
	}
	if repository == d.away {
		return errdefs.ErrUnavailable
	}
	return nil
}

// A repository that is away is asked once, and holds up no other one's deletions.
func TestOneRepositoryIsAway(t *testing.T) {
	e := newWorld(t).start("n1")
	d := &pendingStore{RecordsService: e.Records, Snapshots: e.Snapshots, away: "first"}
	e.opts.Repository = func(*nodev1.Record) string { return "x" } // all are in this node's reach
	e.Records, e.Snapshots = d, d
	if err := e.Clean(t.Context(), nil); !errdefs.IsUnavailable(err) {
		t.Errorf("clean: %v", err)
	}
	if diff := cmp.Diff([]string{"first", "second"}, d.asked); diff != "" || len(d.cleared) != 1 ||
		d.cleared[0] != "sha256:2" {
		t.Errorf("cleared %v, asked (-want +got):\n%s", d.cleared, diff)
	}
}

// A pending deletion of another VM's snapshot is cleared with an event, and the deletion names the uid that is noted.
func TestForeignDeletion(t *testing.T) {
	e := newWorld(t).start("n1")
	d, told := &pendingStore{RecordsService: e.Records, Snapshots: e.Snapshots, foreign: "first"}, &foreignTold{}
	e.opts.Repository = func(*nodev1.Record) string { return "x" }
	e.Records, e.Snapshots, e.Events = d, d, told
	if err := e.Clean(t.Context(), nil); err != nil {
		t.Errorf("clean: %v", err)
	}
	if len(d.cleared) != 3 || d.uids[0] != "u" || len(told.all) != 2 || told.all[0].Type != Foreign ||
		!strings.Contains(told.all[0].Reason, "not of that VM") {
		t.Errorf("struck off %v for %v, told %v", d.cleared, d.uids, told.all)
	}
}

type foreignTold struct{ all []Event }

func (h *foreignTold) Event(_ context.Context, ev Event) { h.all = append(h.all, ev) }

// Each node may have a directory of its own, at the path that all of them have. A snapshot in it is deleted by the
// node that made it: that another node has nothing there clears nothing.
func TestDeletionInAnotherNodesDirectory(t *testing.T) {
	w := asleep(t)
	w.apart = true
	maker, other := w.start("n1"), w.start("n2")
	w.rounds(maker, 1)
	pendingList := w.pendingDeletions()
	if len(pendingList) != 0 || len(w.dropped) != 1 {
		t.Fatalf("pending for the maker is %v and has dropped %v", pendingList, w.dropped)
	}
	ref := w.record().GetSnapshots()[0]
	if ref.GetNode() != "n1" {
		t.Errorf("snapshot %v: n1 made it", ref)
	}
	if err := w.wake(other, "w"); err != nil {
		t.Fatal(err)
	}
	w.settle("w")
	if err := w.hibernate(other, "h"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("h"); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || op.GetCleanupPending() {
		t.Errorf("hibernate at the other node: %v", op)
	}
	if err := other.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if pendingList := w.pendingDeletions(); len(pendingList) != 1 ||
		pendingList[0].GetSnapshot().GetDigest() != ref.GetDigest() || len(w.dropped) != 1 {
		t.Errorf("owed %v, dropped %v: the other node has deleted it", pendingList, w.dropped)
	}
	resp, err := other.Prune(t.Context(), &nodev1.PruneRequest{})
	if all := resp.GetPruned(); err != nil || len(all) != 1 || !strings.Contains(all[0].GetError(), `node "n1"`) {
		t.Errorf("prune at the other node: %v, %v", all, err)
	}
	if err := maker.Sweep(t.Context()); err != nil || len(w.pendingDeletions()) != 0 || len(w.dropped) != 2 {
		t.Errorf("pending for the maker is %v and has dropped %v: %v", w.pendingDeletions(), w.dropped, err)
	}
}

// asked notes whose records were asked for.
type asked struct {
	nodev1.RecordsService
	of []*nodev1.ListRequest
}

func (a *asked) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	a.of = append(a.of, req)
	return a.RecordsService.List(ctx, req)
}

// What a node does several times a minute it asks of its own records alone: all of a fleet's, by
// all of its nodes, would be more than a controller can say. A round of all of it asks once. The
// controller drives everybody's moves.
func TestNodeAsksForItsOwn(t *testing.T) {
	w := newWorld(t)
	for node, drives := range map[string]bool{"n1": false, "c": true} {
		e := w.start(node)
		a := &asked{RecordsService: e.Records}
		e.Records = a
		for what, do := range map[string]func() error{
			"resume": func() error {
				return e.Resume(t.Context())
			}, "due": func() error { return e.Due(t.Context()) }, "deletions": func() error { return e.Deletions(t.Context()) },
			"reconcile": func() error { return e.Reconcile(t.Context(), func() ([]*nodev1.VM, error) { return nil, nil }) },
			"round":     func() error { return e.Round(t.Context(), func() ([]*nodev1.VM, error) { return nil, nil }) },
		} {
			if a.of = nil; do() != nil || len(a.of) != 1 || a.of[0].GetNode() != node || a.of[0].GetMoves() != drives {
				t.Errorf("%s at node %s asks for the records of %v", what, node, a.of)
			}
		}
	}
}
