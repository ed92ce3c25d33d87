//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
)

// sleepSteps are the calls of a pod that sleeps and wakes, each on the node that is hurt.
var sleepSteps = map[string]func(*sleepWorld, context.Context) error{
	"hibernate": (*sleepWorld).hibernate,
	"wake":      (*sleepWorld).wake,
	"restore":   (*sleepWorld).wake, // containerd dies in each of its calls
	"leave":     (*sleepWorld).leave,
	"come":      (*sleepWorld).come,
}

var sleepOrder = []string{"hibernate", "wake", "restore", "leave", "come"}

// sleepSelection is what runs without GODWIT_CRASH=full and without a sample.
var sleepSelection = []string{
	"hibernate/before node Machine.Vote/shim",
	"wake/after node pod.Bind/containerd",
	"wake/before node pod.Arm #3/shim",
	"wake/after node pod.Arm #3/godwitd",
	"restore/before node Task.Connect/containerd",
	"restore/before node Task.Wait #2/containerd",
	"restore/before node Task.Create #3/containerd",
	"restore/before node Task.Wait #4/containerd",
	"leave/after node Machine.Vote/godwitd",
	"come/after node pod.Arm #3/containerd",
	"come/before node Machine.Run/shim",
}

// TestCrashPodSleep kills the shim, the VMM, containerd and godwitd at each point of the sleep of a pod. It does so too
// at each point of its wake by crictl on the other node. The same is done in its live move, on each of both nodes. Step
// restore is a wake in which containerd dies at each of its calls. After a death of containerd, the pod is made as a
// kubelet does, which goes on with what is there.
// Never does a second VM run, and no operation stays open. The pod that runs or sleeps afterwards is the same run, and
// sleeps and wakes once more. Only the death of VMM or shim may lose it.
func TestCrashPodSleep(t *testing.T) {
	full, drawn := os.Getenv("GODWIT_CRASH") == "full", sampled(t)
	w := newSleepWorld(t)
	t.Run("a sidecar ends in the last pass", w.losesSidecar)
	cases := sleepSelection
	if drawn != nil {
		cases = w.drawCases(t, drawn)
	}
	for _, step := range sleepOrder {
		t.Run(step, func(t *testing.T) {
			names := selected(cases, step)
			if full && drawn == nil {
				names = w.survey(t, step)
			}
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					if err := w.play(t, step, name); err != nil {
						t.Error(err)
						if err := w.fresh(t.Context()); err != nil { // the next case does not pay for this one
							t.Fatal(err)
						}
					}
				})
			}
		})
	}
	if err := w.fresh(t.Context()); err != nil {
		t.Error(err)
	}
}

// drawCases draws from all cases of the steps that this run has (-run).
func (w *sleepWorld) drawCases(t *testing.T, s *sample) []string {
	var all []string
	for _, step := range sleepOrder {
		t.Run(step, func(t *testing.T) {
			for _, name := range w.survey(t, step) {
				all = append(all, step+"/"+name)
			}
		})
	}
	drawn := s.draw(all)
	s.log(t, all, drawn)
	return drawn
}

// survey lists the points of a step that no death disturbs, with each program.
func (w *sleepWorld) survey(t *testing.T, step string) (names []string) {
	ctx := t.Context()
	if err := w.begin(ctx, step); err != nil {
		t.Fatal(err)
	}
	if err := sleepSteps[step](w, ctx); err != nil {
		t.Fatal(err)
	}
	_, err := w.settled(ctx) // a wake goes on once all is started
	all, perr := w.here().passed(w.here().Node, here)
	if err := errors.Join(err, perr, w.judge(ctx, shimProcess, t)); err != nil {
		t.Fatal(err)
	}
	if step == "restore" {
		return calls(t, all)
	}
	for _, e := range all {
		t.Logf("point: %s", e)
		for _, who := range podVictims {
			names = append(names, e.String()+"/"+string(who))
		}
	}
	return names
}

// calls are the points of a restore at which containerd dies: before each of its calls to the shim, and after each that
// changes something. Stats come when they like, and there is no after of a wait.
func calls(t *testing.T, all []edge) (names []string) {
	for _, e := range all {
		changes := e.name == "Task.Create" || e.name == "Task.Start"
		if !strings.HasPrefix(e.name, "Task.") || e.name == "Task.Stats" || e.side == failpoint.After && !changes {
			continue
		}
		t.Logf("call: %s", e)
		names = append(names, e.String()+"/"+string(containerds))
	}
	if len(names) < 4*len(sleepers) {
		t.Fatalf("a restore of %d containers has the calls %q", len(sleepers), names)
	}
	return names
}

// wakes reports whether a step makes a pod that sleeps.
func wakes(step string) bool { return step == "wake" || step == "restore" }

// wake makes the pod on the node that is hurt.
func (w *sleepWorld) wake(ctx context.Context) error { return w.make(ctx, w.at) }

// begin brings the pod before a step: it runs, or sleeps and is to wake on the node where it did not run.
func (w *sleepWorld) begin(ctx context.Context, step string) error {
	if w.nonce == "" {
		if err := errors.Join(w.make(ctx, w.at), w.counts(ctx)); err != nil {
			return err
		}
	}
	if wakes(step) {
		if err := errors.Join(w.hibernate(ctx), w.drop(ctx)); err != nil {
			return err
		}
		w.at = 1 - w.at
	}
	if step == "come" {
		w.at = 1 - w.at
	}
	if err := errors.Join(w.nodes[0].forget(w.nodes[0].Node), w.nodes[1].forget(w.nodes[1].Node)); err != nil {
		return err
	}
	if step != "restore" {
		return nil
	}
	return os.WriteFile(filepath.Join(w.here().of(w.here().Node), failpoint.AsksName), nil, 0o600)
}

// play kills a program at a side of a point.
func (w *sleepWorld) play(t *testing.T, step, name string) error {
	ctx := t.Context()
	at, who, _ := strings.Cut(name, "/")
	e, ok := edgeOf(at)
	if !ok {
		return fmt.Errorf("%q is no point", at)
	}
	err := w.place(ctx, step, e)
	if err == nil {
		err = w.begin(ctx, step)
	}
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	answer, err := w.here().hurt(ctx, e, victim(who), func(ctx context.Context) error {
		err := sleepSteps[step](w, ctx)
		if err == nil && wakes(step) { // its last Start is answered before its operation is over
			_, err = w.settled(ctx)
		}
		return err
	}, w.restart)
	if errors.Is(err, errOver) && e.name == "Task.State" { // how often it is asked differs
		t.Logf("containerd lives: %v", err)
		return w.judge(ctx, containerds, t)
	}
	if err != nil {
		return err
	}
	t.Logf("the call answered: %v", answer)
	if answer != nil && wakes(step) { // a half of a pod waits for the rest
		after := w.drop // its maker gives it up
		if victim(who) == containerds {
			after = w.retry
		}
		if err := after(ctx); err != nil {
			return err
		}
	}
	return w.judge(ctx, victim(who), t)
}

// place has the pod where the step hurts the node that passes a point. The first node is the controller too: it writes
// the records, and is told of each move, as the source is. The second one alone relays its questions about pods.
func (w *sleepWorld) place(ctx context.Context, step string, e edge) error {
	hurt := w.at
	if wakes(step) || step == "come" {
		hurt = 1 - w.at
	}
	switch {
	case strings.HasPrefix(e.name, "record.") && hurt == 1, e.name == "Pods.Resolve" && hurt == 0:
	case e.name == "Moves.Migrate" && step == "come" && hurt == 1:
	default:
		return nil
	}
	if w.nonce == "" { // there is none
		w.at = 1 - w.at
		return nil
	}
	if err := w.hibernate(ctx); err != nil {
		return err
	}
	return w.wakeElsewhere(ctx)
}

// restart starts again what was killed. Another program starts the first node's containerd.
func (w *sleepWorld) restart(ctx context.Context, who victim) error {
	n := w.here()
	if who == containerds && w.at > 0 {
		if err := n.StartContainerd(ctx); err != nil {
			return err
		}
	}
	return n.restart(ctx, who)
}

// judge looks at what has become of the VM, and brings the pod back to where it runs.
func (w *sleepWorld) judge(ctx context.Context, who victim, t *testing.T) error {
	owner, err := w.settled(ctx)
	if err == nil && owner.GetDigest() == "" {
		err = w.locate(ctx, owner)
	}
	if err != nil {
		return err
	}
	vmms, err := w.vmms()
	if err != nil || len(vmms) > 1 {
		return fmt.Errorf("the nodes have VMMs %v: %w", vmms, err)
	}
	switch {
	case owner.GetDigest() != "":
		t.Log("the pod sleeps")
		return w.wakeElsewhere(ctx)
	case w.served(ctx):
		t.Log("the pod runs")
		return nil
	case len(vmms) == 1: // containerd knows its tasks no more
		t.Log("a successor has the pod")
		err := w.hibernate(ctx)
		if err == nil {
			return w.wakeElsewhere(ctx)
		}
		return fmt.Errorf("hibernate by a successor: %w", err)
	case who == shimProcess || who == vmmProcess:
		t.Log("the pod is lost")
		return w.fresh(ctx)
	}
	return fmt.Errorf("the pod is lost, and its owner is %v", owner)
}

// served reports whether CRI's container answers. One whose shim has died is running for CRI a moment longer.
func (w *sleepWorld) served(ctx context.Context) (served bool) {
	err := harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		state, err := w.here().state(ctx, w.readers[w.at])
		if err != nil || state != "CONTAINER_RUNNING" {
			return nil
		}
		err = w.countsNow(ctx)
		served = err == nil
		return err
	})
	return served && err == nil
}

// wakeElsewhere removes what CRI knows of a pod that sleeps, and wakes it on the other node.
func (w *sleepWorld) wakeElsewhere(ctx context.Context) error {
	if err := w.drop(ctx); err != nil {
		return err
	}
	vmms, err := w.vmms()
	if err != nil || len(vmms) > 0 {
		return fmt.Errorf("the pod sleeps, and VMMs %v run: %w", vmms, err)
	}
	w.at = 1 - w.at
	if err := w.make(ctx, w.at); err != nil {
		return fmt.Errorf("wake after all: %w", err)
	}
	return w.counts(ctx)
}

// fresh removes the pod and its record. The next case boots a new one. The first node is the controller too, which may
// be asked for any VM.
func (w *sleepWorld) fresh(ctx context.Context) error {
	w.nonce, w.count = "", 0
	if err := w.drop(ctx); err != nil {
		return err
	}
	return harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		_, err := w.nodes[0].RunGodwit(ctx, "-n", "k8s.io", "rm", "--force", sleepingVM)
		if err != nil && strings.Contains(err.Error(), "There is no VM") {
			return nil
		}
		return err
	})
}
