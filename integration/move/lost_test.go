//go:build integration

package move

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
)

// back has a node that was cut off and called lost come back: its VMs, which never stopped, run
// elsewhere by now. Its daemon reaches the records before anybody on the wire meets those VMs:
// it ends each, says whose it is, and nothing of them stays; who has them notices nothing (I1, I2).
func back(t *testing.T, n *harness.Node, plug func() error, empty harness.Inventory, watch *observer.Watcher,
	owners map[string]string) {
	t.Helper()
	_, before := watch.Twice()
	for id := range owners {
		if j := journal(n, id); j.Phase != "OWN" {
			t.Errorf("cut off, node %s has %s in %q", n.Name, id, j.Phase)
		}
	}
	if err := plug(); err != nil {
		t.Fatal(err)
	}
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		for id := range owners {
			if _, err := os.Stat(dirOf(n, id)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("node %s has %s still: %+v, %w", n.Name, id, journal(n, id), err)
			}
		}
		out, err := n.RunCtr(ctx, "tasks", "ls", "-q")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("node %s has the tasks %q", n.Name, strings.Fields(out))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Clean(t.Context(), empty); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(filepath.Join(filepath.Dir(n.Dir), "log", n.Name+"-godwitd.log"))
	if err != nil {
		t.Fatal(err)
	}
	for id, owner := range owners {
		if !slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool {
			return strings.Contains(line, "Outlived") && strings.Contains(line, "default/"+id+" ") &&
				strings.Contains(line, "node "+owner)
		}) {
			t.Errorf("node %s does not say that it ended %s for node %s", n.Name, id, owner)
		}
		if _, err := n.RunCtr(t.Context(), "task", "start", "-d", id); err == nil ||
			!strings.Contains(err.Error(), "node "+owner+" owns it") {
			t.Errorf("start of %s, which was left behind: %v", id, err)
		}
	}
	told := map[string]string{}
	err = harness.Poll(t.Context(), bound, func(context.Context) error {
		for _, ev := range events(t, n, 0) {
			if ev.GetType() == moves.Outlived {
				told[ev.GetVm().GetId()] = ev.GetReason()
			}
			if ev.GetType() == moves.Outlived && ev.GetSource() != n.Name {
				return fmt.Errorf("told by another node: %v", ev)
			}
		}
		for id, owner := range owners {
			if !strings.Contains(told[id], "node "+owner) {
				return fmt.Errorf("of %s, which node %s has, is told %q", id, owner, told[id])
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	watch.Mark("after it")
	after(t, watch, "after it")
	if _, now := watch.Twice(); now != before {
		t.Errorf("the VM went back %d times: it was heard from both nodes", now-before)
	}
}

func dirOf(n *harness.Node, id string) string {
	return filepath.Join(n.Dir, "lib", "vms", "default", id)
}

// switched runs a move up to where its destination runs the VM.
func (j *liveMove) switched(watch *observer.Watcher) (stood, runs observer.Sighting) {
	j.t.Helper()
	j.prepare()
	j.advance(nodev1.Phase_PHASE_TRANSFERRING, nil)
	j.must("send", j.send(nil))
	j.vote()
	stood = watch.Latest()
	j.commit()
	watch.Mark(j.ref.GetOperation())
	j.must("start", j.to.start(j.t.Context()))
	return stood, after(j.t, watch, j.ref.GetOperation())
}

// forgotten is a move whose source is out of reach when it is to release the VM. The source comes back when the
// records know nothing of the move any more: by owner and generation it finds out that the VM is elsewhere, and
// frees what it keeps.
func forgotten(t *testing.T, j *liveMove, watch *observer.Watcher) {
	j.must("stop the source's daemon", j.from.Godwitd.Kill())
	j.switched(watch)
	j.advance(nodev1.Phase_PHASE_CLEANING, nil)
	j.finish(nodev1.Phase_PHASE_SUCCEEDED)
	for i := 0; !errdefs.IsNotFound(j.known()); i++ {
		if i > 200 {
			t.Fatalf("the move is never forgotten: %v", j.known())
		}
		j.filler(fmt.Sprintf("filler-%d", i))
	}
	if p := journal(j.from.Node, vm).Phase; p != "PREPARED" {
		t.Fatalf("the source has the VM in %q, before its daemon is there", p)
	}
	j.must("start the source's daemon", j.from.StartGodwitd(t.Context()))
	j.must("the source frees it", harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		if _, err := os.Stat(dirOf(j.from.Node, vm)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it is there: %+v, %w", journal(j.from.Node, vm), err)
		}
		out, err := j.from.RunCtr(ctx, "tasks", "ls", "-q")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("it has the tasks %q", strings.Fields(out))
		}
		return err
	}))
	watch.Mark("forgotten")
	after(t, watch, "forgotten")
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
}

// known asks the records for the move.
func (j *liveMove) known() error {
	_, err := j.records.Operation(j.t.Context(), &nodev1.OperationRequest{Id: j.ref.GetOperation()})
	return err
}

// filler is an operation that comes to nothing, and that the records remember instead.
func (j *liveMove) filler(id string) {
	j.t.Helper()
	ctx := j.t.Context()
	rec, err := j.records.Get(ctx, &nodev1.GetRequest{Vm: j.vm()})
	j.must("get record", err)
	op := &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1, Source: rec.GetOwner().GetNode(),
		Generation: rec.GetGeneration()}
	_, err = j.records.Open(ctx, &nodev1.OpenRequest{Vm: j.vm(), Operation: op})
	j.must("open", err)
	_, err = j.records.Advance(ctx, &nodev1.AdvanceRequest{Vm: j.vm(), Operation: id, Attempt: 1,
		Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_ABORTING})
	j.must("abort", err)
	_, err = j.records.Finish(ctx, &nodev1.FinishRequest{Vm: j.vm(), Operation: id, Attempt: 1,
		Generation: op.GetGeneration(), Phase: nodev1.Phase_PHASE_FAILED})
	j.must("finish", err)
}

// fromSource is a move whose destination loses the VM after it ran there. The source has it as it was at the
// switch-over and keeps it. It lets it run on once a person says so. After that nothing of the destination's is
// heard (I2).
func fromSource(t *testing.T, h *harness.Harness, j *liveMove, watch *observer.Watcher) {
	was := ask(t, h, watch.Latest().From)
	stood, _ := j.switched(watch)
	j.must("the VM goes on there", harness.Poll(t.Context(), bound, func(context.Context) error {
		if now := watch.Latest(); now.Counter < stood.Counter+20 {
			return fmt.Errorf("it is at %d, was at %d", now.Counter, stood.Counter)
		}
		return nil
	}))
	there := journal(j.to.Node, vm)
	_, err := j.to.Run(t.Context(), "kill", "-KILL", fmt.Sprint(there.Shim.PID), fmt.Sprint(there.Process.PID))
	j.must("kill shim and VMM of the destination", err)
	lost := watch.Latest()
	j.finish(nodev1.Phase_PHASE_LOST_AT_DEST)
	refused(t, j.from.Node, "--from-source", "recover", vm, "--to", j.from.Name, "--fenced")
	if out := j.from.Godwit(t, "recover", vm, "--from-source"); !strings.Contains(out, "node "+j.from.Name) {
		t.Errorf("recover says %s", out)
	}
	if p := journal(j.from.Node, vm).Phase; p != "PREPARED" {
		t.Errorf("the source has the VM in %q before the order", p)
	}
	// the dead shim's successor may hold the VM for a moment
	j.must("recover", harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		_, err := j.from.RunGodwit(ctx, "recover", vm, "--from-source", "--fenced")
		return err
	}))
	j.must("the VM runs at its source", harness.Poll(t.Context(), bound, func(context.Context) error {
		if now := watch.Latest(); now.Nonce != was.Nonce || now.Counter >= lost.Counter || now.Counter < stood.Counter {
			return fmt.Errorf("heard is %+v; it stood at %d, and was lost at %d", now.Beacon, stood.Counter, lost.Counter)
		}
		return nil
	}))
	if now := ask(t, h, watch.Latest().From); now.Nonce != was.Nonce || now.PID != was.PID || now.BootID != was.BootID ||
		!now.FileOK {
		t.Errorf("the VM is another one: %+v, was %+v", now, was)
	}
	if out := j.from.Ctr(t, "task", "exec", "--exec-id", "back", vm, "/bin/busybox", "echo", "here"); !strings.Contains(
		out, "here") {
		t.Errorf("exec at the source: %q", out)
	}
	rec, err := j.records.Get(t.Context(), &nodev1.GetRequest{Vm: j.vm()})
	if err != nil || rec.GetOwner().GetNode() != j.from.Name || rec.GetGeneration() <= j.ref.GetGeneration()+1 {
		t.Errorf("record %v, %v", rec, err)
	}
	_, before := watch.Twice()
	watch.Mark("it goes on")
	after(t, watch, "it goes on")
	if _, now := watch.Twice(); now != before {
		t.Errorf("the VM went back %d times once it ran at its source", now-before)
	}
}

// dropped removes what containerd has of a VM that was lost on the node.
func dropped(t *testing.T, n *harness.Node) {
	t.Helper()
	for _, args := range [][]string{{"task", "rm", "--force", vm}, {"container", "rm", vm}} {
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			_, err := n.RunCtr(ctx, args...)
			if err != nil && strings.Contains(err.Error(), "not found") {
				err = nil
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
