//go:build integration

package move

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// A VM moves while it runs, ordered by ttrpc and containerd alone: its memory, disk, open connection and a running
// exec go with it. No client sees it twice, and nothing of it stays. Before that, a move that is broken off leaves
// it where it is, and one whose destination cannot gives it back.
func TestLiveMove(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Godwitd: true, Images: true})
	a, b := newSide(t, h.Node(0)), newSide(t, h.Node(1))
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	records, err := record.Dial(t.Context(), socket(a.Node))
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	watch.Mark("boot")
	a.Ctr(t, "run", "-d", "--cni", "--runtime", "io.containerd.godwit.v1", images.Probe, vm, "/bin/probe", "-fill", "24",
		"-beacon", net.JoinHostPort(harness.Gateway, beacons))
	booted := after(t, watch, "boot")
	before := ask(t, h, booted.From)
	line, err := observer.Call(t.Context(), h.Dial, booted.From, bound)
	if err != nil {
		t.Fatal(err)
	}
	defer line.HangUp()
	count := counts(t, a)
	echoes(t, a)

	t.Run("broken off", func(t *testing.T) { breakOff(t, newLiveMove(t, records, a, b, "mv-1")) })
	t.Run("taken back", func(t *testing.T) { takeBack(t, newLiveMove(t, records, a, b, "mv-2"), watch) })
	count.wantMore()
	if t.Failed() {
		return
	}

	j := newLiveMove(t, records, a, b, "mv-3")
	j.prepare()
	j.advance(nodev1.Phase_PHASE_TRANSFERRING, nil)
	if err := j.send(nil); err != nil {
		t.Fatal(err)
	}
	last := watch.Latest()
	paused := time.Now()
	if out, err := a.RunCtr(t.Context(), "task", "kill", vm); err == nil || !strings.Contains(err.Error(), "mv-3") {
		t.Errorf("a kill of what is being moved: %s, %v", out, err)
	}
	if err := b.start(t.Context()); err == nil {
		t.Error("the destination starts before the commit")
	}
	watch.Mark("move")
	gate := time.Now()
	j.vote()
	voted := time.Now()
	j.commit()
	committed := time.Now()
	j.must("start", b.start(t.Context()))
	running := time.Now()
	moved := after(t, watch, "move")
	j.release()
	t.Logf("sent %+v", j.sent)
	t.Logf("vote %v, commit %v, start %v; last beacon %v before the vote, first one %v after it (the test itself "+
		"looked for %v)",
		voted.Sub(gate), committed.Sub(voted), running.Sub(committed), gate.Sub(last.At), moved.At.Sub(gate),
		gate.Sub(paused))

	now := ask(t, h, booted.From)
	if now.Nonce != before.Nonce || now.PID != before.PID || now.StartTime != before.StartTime ||
		now.BootID != before.BootID || !now.FileOK || now.Counter <= before.Counter {
		t.Errorf("the VM is another one: %+v, was %+v", now, before)
	}
	said := line.HangUp()
	if said.Err != nil || said.Asked == 0 {
		t.Errorf("the connection: %+v", said)
	}
	t.Logf("%d questions over one connection, the longest took %v", said.Asked, said.Longest)
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
	count.moved(b)
	attaches(t, b)
	if out := b.Ctr(t, "task", "exec", "--exec-id", "e", vm, "/bin/busybox", "echo", "here"); !strings.Contains(
		out, "here") {
		t.Errorf("exec after the move: %q", out)
	}
	// The node itself deletes what a finished move has left, in its own time.
	if out := a.Ctr(t, "task", "ls"); strings.Contains(out, vm) && !strings.Contains(out, "STOPPED") {
		t.Errorf("the source's task:\n%s", out)
	}
	if _, err := a.RunCtr(t.Context(), "task", "rm", vm); err != nil && !strings.Contains(err.Error(), "not found") &&
		!strings.Contains(err.Error(), "is deleting") {
		t.Error(err)
	}
	err = harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		_, err := a.RunCtr(ctx, "container", "rm", vm)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	heard(t, a.Node, "a", "b")
	t.Run("forgotten", func(t *testing.T) { forgotten(t, newLiveMove(t, records, b, a, "mv-4"), watch) })
	if t.Failed() {
		return
	}
	t.Run("from its source", func(t *testing.T) { fromSource(t, h, newLiveMove(t, records, a, b, "mv-5"), watch) })
	a.Ctr(t, "task", "rm", "--force", vm)
	a.Ctr(t, "container", "rm", vm)
	dropped(t, b.Node)
	a.Godwit(t, "rm", vm, "--force")
}

// breakOff ends a move while its pages are on their way: the VM has not stood still, and
// the destination is gone without a trace.
func breakOff(t *testing.T, j *liveMove) {
	clean, err := j.to.Inventory(t.Context())
	j.must("inventory", err)
	j.prepare()
	j.advance(nodev1.Phase_PHASE_TRANSFERRING, nil)
	done := make(chan error, 1)
	go func() { done <- j.send(func(r *machinev1.SendRequest) { r.Bandwidth = 2 << 20 }) }()
	err = harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		q, err := machine(ctx, j.from, machinev1.MachineService.Query, &machinev1.QueryRequest{})
		if err == nil && (q.GetRecord() != "SENDING" || q.GetProgress().GetPass() != 1) {
			err = fmt.Errorf("%s, %v", q.GetRecord(), q.GetProgress())
		}
		return err
	})
	j.must("see pages go", err)
	j.advance(nodev1.Phase_PHASE_ABORTING, nil)
	j.abort()
	if err := <-done; err == nil {
		t.Error("send succeeds after an abort")
	}
	j.finish(nodev1.Phase_PHASE_ABORTED)
	q, err := machine(t.Context(), j.from, machinev1.MachineService.Query, &machinev1.QueryRequest{})
	if err != nil || q.GetRecord() != "OWN" || q.GetState() != "running" {
		t.Errorf("the source is %s, %s: %v", q.GetState(), q.GetRecord(), err)
	}
	j.must("destination", j.to.Clean(t.Context(), clean))
}

// takeBack commits a move whose destination ends before it runs anything: it is fenced,
// and the source has its VM again under a new generation.
func takeBack(t *testing.T, j *liveMove, watch *observer.Watcher) {
	j.prepare()
	j.advance(nodev1.Phase_PHASE_TRANSFERRING, nil)
	j.must("send", j.send(nil))
	j.vote()
	j.commit()
	j.must("undo destination", j.to.tasks(t.Context(), taskOrder{Order: j.order, Undo: true}))
	j.advance(nodev1.Phase_PHASE_REVERTING, nil)
	watch.Mark("revert")
	generation := j.ref.GetGeneration() + 2
	_, err := machine(t.Context(), j.from, machinev1.MachineService.Revert, &machinev1.RevertRequest{Ref: j.ref,
		OwnerGeneration: generation})
	j.must("revert", err)
	after(t, watch, "revert")
	j.finish(nodev1.Phase_PHASE_FAILED)
	q, err := machine(t.Context(), j.from, machinev1.MachineService.Query, &machinev1.QueryRequest{})
	if err != nil || q.GetRecord() != "OWN" || q.GetGeneration() != generation {
		t.Errorf("the source is %s at %d: %v", q.GetRecord(), q.GetGeneration(), err)
	}
}
