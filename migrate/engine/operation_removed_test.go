package engine

import (
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// giveUp is what a VM is with its lost node: the record goes, with the operation that is open.
func (w *world) giveUp(lost string) {
	w.t.Helper()
	_, err := w.records.Remove(w.t.Context(), &nodev1.RemoveRequest{Vm: vm, Uid: w.record().GetUid(), Force: true,
		DropSnapshots: true, LostNode: lost})
	if err != nil {
		w.t.Fatal(err)
	}
}

// An operation whose record was removed, as a VM is given up with its lost node, is driven no more. That is where its
// driver lives on: the controller of a move, or a node that was called lost and runs.
func TestRecordRemovedUnderAnOperation(t *testing.T) {
	for name, test := range map[string]struct {
		node, fails, undo, lost string // undo is what the rollback hangs at; with no fails it is the release
		world                   func(*testing.T) *world
		open                    func(*world, *Engine, string) error
	}{
		"move":       {"c", "Prepare", "Discard", "n1", liveWorld, (*world).moveLive},
		"hibernate":  {"n1", "", "Release", "n1", newWorld, (*world).hibernate},
		"checkpoint": {"n1", "Capture", "Abort", "n1", newWorld, (*world).checkpoint},
		"wake":       {"n2", "Create", "Undo", "n2", asleep, (*world).wake},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world(t)
			w.broke(test.fails, errdefs.ErrInternal)
			w.broke(test.undo, errdefs.ErrUnavailable)
			e := w.start(test.node)
			if err := test.open(w, e, "op"); err != nil {
				t.Fatal(err)
			}
			w.called(test.undo, 2)
			was := w.record()
			w.giveUp(test.lost)
			w.until("its run ends", func() bool { return e.running("op") == nil })
			again := w.start(test.node)
			again.resume([]*nodev1.Record{was}) // by a list that is old
			w.until("the run after a restart ends", func() bool { return again.running("op") == nil })
		})
	}
}

// That there is no record proves nothing: the records may be a copy of before it. The operation goes on once they
// know it again.
func TestRecordMissingUnderAnOperation(t *testing.T) {
	w := newWorld(t)
	w.broke("Release", errdefs.ErrUnavailable)
	e := w.start("n1")
	if err := w.hibernate(e, "op"); err != nil {
		t.Fatal(err)
	}
	w.called("Release", 2)
	w.broke("Get", errdefs.ErrNotFound)
	asked := w.count("Get")
	w.called("Get", asked+3)
	if e.running("op") == nil {
		t.Fatal("its run has ended")
	}
	w.broke("Release", nil)
	w.broke("Get", nil)
	w.settle("op")
	w.check("op")
}
