//go:build integration

// Package crash kills every program of godwit at every step of its operations, with real VMs, and looks from outside
// what came of the VM. The steps of a move are the calls and records that the programs tell of by themselves
// (internal/failpoint, move_*_test.go). The steps of a hibernate and of a wake are scenes: crash_test.go lists them.
// The scenes of a checkpoint are in checkpoint_test.go, those of a task in task_test.go. A new step needs a new scene.
// The verbs that change a VM, with the points that they register, are in verb_test.go.
package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// victim is what is killed.
type victim string

const (
	shimProcess victim = "shim"
	vmmProcess  victim = "vmm"
	worker      victim = "worker"
	daemon      victim = "godwitd"
	containerds victim = "containerd"
	controller  victim = "controller" // the godwitd that keeps the records
	taskKilled  victim = "task kill"  // its user ends the VM
	taskRemoved victim = "task rm -f"
)

// outcome is what an observer sees once everything has settled.
type outcome string

const (
	runs   outcome = "runs"   // on b, as if nothing had been ordered or as was ordered
	sleeps outcome = "sleeps" // the snapshot owns it
	lost   outcome = "lost"   // the VMM died while its node owned the VM
	kept   outcome = "kept"   // runs or sleeps: what was under way when it died decides
)

// scene is a point of an operation, and what each death there comes to.
type scene struct {
	kind, point string
	reach       func(*operationRun, context.Context) error
	comes       map[victim]outcome
}

func scenes() []scene {
	return []scene{
		{"hibernate", "before the pause", (*operationRun).precopying, map[victim]outcome{
			shimProcess: runs, vmmProcess: lost, worker: runs, daemon: sleeps, containerds: sleeps, controller: sleeps}},
		{"hibernate", "while packs are pushed", (*operationRun).pushing, map[victim]outcome{
			shimProcess: runs, vmmProcess: sleeps, worker: runs, daemon: sleeps, containerds: sleeps, controller: sleeps}},
		{"hibernate", "manifest held", (*operationRun).naming, map[victim]outcome{
			shimProcess: runs, vmmProcess: sleeps, worker: runs, daemon: sleeps, containerds: sleeps}},
		{"hibernate", "manifest written", (*operationRun).pushed, map[victim]outcome{
			shimProcess: runs, vmmProcess: sleeps, worker: runs, daemon: sleeps, containerds: sleeps, controller: sleeps}},
		{"hibernate", "voted", (*operationRun).voted, map[victim]outcome{
			shimProcess: kept, vmmProcess: sleeps, daemon: sleeps, containerds: sleeps, controller: sleeps}},
		{"hibernate", "committed", (*operationRun).committed, map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, daemon: sleeps, containerds: sleeps, controller: sleeps}},
		{"hibernate", "clean up", (*operationRun).cleaning, map[victim]outcome{
			shimProcess: sleeps, daemon: sleeps, containerds: sleeps}},
		{"wake", "while packs are pulled", (*operationRun).pulling, map[victim]outcome{
			shimProcess: sleeps, worker: runs, daemon: kept, containerds: kept, controller: runs}},
		{"wake", "ready", (*operationRun).ready, map[victim]outcome{
			shimProcess: sleeps, daemon: runs, containerds: kept}},
		{"wake", "loaded", (*operationRun).loaded, map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, daemon: kept, containerds: kept}},
		{"wake", "committed", (*operationRun).owned, map[victim]outcome{
			shimProcess: sleeps, vmmProcess: sleeps, daemon: runs, containerds: runs, controller: runs}},
		{"wake", "not thawed", (*operationRun).resuming, map[victim]outcome{
			shimProcess: runs, daemon: runs, containerds: runs}},
		{"wake", "runs", (*operationRun).running, map[victim]outcome{
			shimProcess: lost, vmmProcess: lost, daemon: runs, containerds: runs}},
	}
}

// selection is what runs without GODWIT_CRASH=full: one death of each kind of process,
// on both sides of both commits.
var selection = []string{
	"hibernate/before the pause/shim", "hibernate/manifest written/shim", "hibernate/voted/godwitd",
	"hibernate/voted/containerd", "hibernate/committed/vmm",
	"wake/while packs are pulled/worker", "wake/committed/shim", "wake/committed/containerd",
}

// TestCrash is the matrix.
func TestCrash(t *testing.T) { playAll(t, newWorld, scenes(), selection) }

// playAll plays each death of the scenes, or, without GODWIT_CRASH=full, those of the selection.
// All cases share two nodes, and the VM as long as it lives: each one shows that the last one
// left everything in order.
func playAll(t *testing.T, newWorld func(*testing.T) *world, scenes []scene, selection []string) {
	full := os.Getenv("GODWIT_CRASH") == "full"
	var w *world
	for _, s := range scenes {
		for _, v := range []victim{shimProcess, vmmProcess, worker, daemon, containerds, controller, taskKilled,
			taskRemoved} {
			want, ok := s.comes[v]
			name := s.kind + "/" + s.point + "/" + string(v)
			if !ok || !full && !slices.Contains(selection, name) {
				continue
			}
			if w == nil {
				w = newWorld(t)
			}
			if !t.Run(name, func(t *testing.T) {
				if err := w.play(t, s, v, want); err != nil {
					t.Fatal(errors.Join(err, w.Logs(), w.successors()))
				}
			}) { // the next case does not pay for this one
				w.Close()
				w = nil
			}
		}
	}
	if w == nil {
		return
	}
	if err := w.end(t.Context()); err != nil {
		t.Error(err)
	}
}

// The shim of a wake dies between the commit and the NIC that it would plug in.
// Its successor lets the VM run, and plugs the NIC in.
func TestCrashBeforeTheNIC(t *testing.T) {
	w := newWorld(t)
	w.flags = []string{"--annotation", "godwit.dev/nic=recycle"}
	s := scene{kind: "wake", point: "NIC not plugged in", reach: (*operationRun).unplugged}
	err := w.play(t, s, shimProcess, runs)
	if err == nil {
		err = w.end(t.Context())
	}
	if err != nil {
		t.Fatal(errors.Join(err, w.Logs(), w.successors()))
	}
}

// unplugged is resuming of a VM that sleeps without its NIC.
func (a *operationRun) unplugged(ctx context.Context) error {
	if err := a.resuming(ctx); err != nil {
		return err
	}
	if j := note(a.b, a.vm); !j.Unplugged || !j.Waking {
		return fmt.Errorf("the journal says %+v", j)
	}
	return nil
}

// play brings the VM to the point, kills, starts again what had been started by hand,
// and judges.
func (w *world) play(t *testing.T, s scene, v victim, want outcome) error {
	ctx := t.Context()
	if err := w.awake(ctx); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	if s.kind == "wake" {
		if err := w.hibernate(ctx); err != nil {
			return fmt.Errorf("before: %w", err)
		}
	}
	a := w.order(s.kind)
	defer a.release()
	if err := s.reach(a, ctx); err != nil {
		return fmt.Errorf("reach the point: %w", err)
	}
	follow := a.packs.follower(a, v, want)
	if err := a.kill(ctx, v); err != nil {
		return err
	}
	killed := time.Now()
	if err := follow(ctx); err != nil {
		return err
	}
	a.release()
	if err := a.restart(ctx, v); err != nil {
		return err
	}
	got, err := a.judge(ctx, want)
	t.Logf("%s after %.1f s: %v", got, time.Since(killed).Seconds(), err)
	if got != want && !(want == kept && (got == runs || got == sleeps)) {
		return fmt.Errorf("the VM %s, want %s: %w", got, want, err)
	}
	if doubled := w.watch.duplicates(); len(doubled) > 0 {
		return fmt.Errorf("the VM ran twice: %s", strings.Join(doubled, ", "))
	}
	if s.kind == "checkpoint" {
		if err := w.whole(ctx); err != nil {
			return err
		}
	}
	if err := w.checkRecovered(ctx, got); err != nil {
		return err
	}
	return w.lazy.intact(ctx, w)
}

func (a *operationRun) kill(ctx context.Context, v victim) (err error) {
	var pid int
	switch v {
	case shimProcess:
		pid, err = a.shim()
	case vmmProcess:
		pid, err = a.vmm()
	case worker:
		pid, err = workerPID(a.b)
	case daemon:
		return a.b.Godwitd.Kill()
	case containerds:
		return a.b.Containerd.Kill()
	case controller:
		return a.a.Godwitd.Kill()
	case taskKilled, taskRemoved:
		return a.endTask(ctx, v)
	}
	if err != nil {
		return err
	}
	return kill(ctx, pid)
}

func (a *operationRun) restart(ctx context.Context, v victim) error {
	switch v {
	case daemon:
		return a.b.StartGodwitd(ctx)
	case containerds:
		return a.b.StartContainerd(ctx)
	case controller:
		return a.a.StartGodwitd(ctx)
	}
	return nil
}

// judge waits until no operation is open and answers what became of the VM. err is what
// the operation says of itself, and must be there if it did not do what was ordered.
func (a *operationRun) judge(ctx context.Context, want outcome) (outcome, error) {
	info, err := a.settled(ctx)
	if err != nil {
		return "is not settled", err
	}
	told := a.godwit(ctx, a.kind, "--operation", a.id, a.vm) // the same call once more
	var run *harness.RunError
	switch errors.As(told, &run); {
	case told != nil && (run == nil || len(reason(run.Stderr)) < 10):
		return "is not explained", told
	case info.GetOwner().GetDigest() != "":
		if err := a.silent(ctx); err != nil {
			return "runs though it sleeps", err
		}
		if a.kind == "wake" && told == nil {
			return "sleeps after a good wake", nil
		}
		return sleeps, told
	}
	if a.kind == "hibernate" && told == nil {
		return "is awake after a good hibernate", nil
	}
	// Whether it runs is for the guest to say; one that is lost says nothing.
	if want == lost {
		if err := a.silent(ctx); err == nil {
			return lost, told
		}
	}
	if err := a.same(ctx, time.Now()); err != nil {
		return lost, errors.Join(told, err)
	}
	return runs, told
}

// reason is what an error says in addition to the operation's name and its class.
func reason(stderr string) string {
	_, rest, _ := strings.Cut(stderr, ": ")
	return strings.TrimSuffix(strings.TrimSpace(rest), "aborted")
}

// checkRecovered shows that nothing is left of the crash: the VM sleeps and wakes once more, or
// its name is free.
func (w *world) checkRecovered(ctx context.Context, got outcome) error {
	switch got {
	case lost:
		if w.lazy != nil {
			return w.wakeAgain(ctx)
		}
		return w.remove(ctx)
	case runs:
		if err := w.hibernate(ctx); err != nil {
			return fmt.Errorf("hibernate after all: %w", err)
		}
	case sleeps:
		if err := w.clean(ctx); err != nil {
			return err
		}
	}
	if err := w.wake(ctx); err != nil {
		return fmt.Errorf("wake after all: %w", err)
	}
	return nil
}

// end removes the VM that the last case has left.
func (w *world) end(ctx context.Context) error {
	if w.nonce == "" {
		return nil
	}
	return w.remove(ctx)
}
