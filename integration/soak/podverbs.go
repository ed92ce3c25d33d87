package soak

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// podVerbs are of pods, by crictl and by the orders of godwit that pods have. They are drawn from a stream of their
// own, so that a seed draws the same other steps as before there were any.
func podVerbs() []verb {
	return []verb{
		{"pod run", 2, absent, (*act).podRun},
		{"pod hibernate", 4, awake, (*act).podHibernate},
		{"pod wake", 2, asleep, (*act).podWake},
		{"pod wake, containerd killed", 2, asleep, (*act).podWakeKilled},
		{"pod wake, sandbox removed", 2, asleep, (*act).podWakeRemoved},
		{"pod move", 3, awake, (*act).podMove},
		{"pod move, container ends", 2, awake, (*act).podMoveEnding},
		{"pod checkpoint", 2, awake, (*act).podCheckpoint},
		{"pod exec", 2, awake, (*act).podExec},
		{"pod container ends", 2, awake, (*act).podEnds},
		{"pod rm", 1, there, (*act).rm},
	}
}

func podNames() (names []string) {
	for _, v := range podVerbs() {
		names = append(names, v.name)
	}
	return names
}

func (v verb) ofPod() bool { return strings.HasPrefix(v.name, "pod ") }

// podStream is what podVerbs are drawn from, and podEach how many steps lie between two.
const (
	podStream = 4
	podEach   = 3
)

// orderPod orders one of podVerbs after each so many steps. A verb that no pod is fit for gives way to the next one.
func (w *world) orderPod(ctx context.Context, named map[string]verb, step Step, pods *Schedule) {
	each := cmp.Or(w.opts.PodEach, podEach)
	if w.opts.Pods == 0 || step.N%each != each/2 {
		return
	}
	if _, err := w.look(ctx); err != nil { // then no verb meets a pod
		w.log("pod: missed: %v", err)
		return
	}
	for range podNames() {
		more := pods.verb()
		more.Sound = false
		err := w.order(ctx, named[more.Name], more)
		if err == nil {
			return
		}
		w.log("pod %s: missed: %v", more, err)
	}
}

func (a *act) podGodwit(ctx context.Context, n *harness.Node, args ...string) error {
	return a.godwit(ctx, n, append([]string{"-n", criNamespace}, args...)...)
}

// podRun makes a pod that is not there, and waits until both containers are heard.
func (a *act) podRun(ctx context.Context) error {
	for _, g := range a.g.all() {
		g.set(func() { g.tried = true })
	}
	m := a.making(a.g, a.to)
	m.fresh = true
	if err := m.again(ctx); err != nil {
		return err
	}
	return harness.Poll(ctx, bootBound, func(context.Context) error {
		for _, g := range a.g.all() {
			if g.known(); g.vm() == "" {
				return fmt.Errorf("%s is not heard", g.name)
			}
		}
		return nil
	})
}

func (a *act) podHibernate(ctx context.Context) error {
	err := a.podGodwit(ctx, a.owner, "hibernate", "--end-execs", "--operation", a.id, a.g.name)
	if err != nil {
		return err
	}
	return a.left(ctx)
}

// left removes what CRI has of the pod on the node that the pod has left.
func (a *act) left(ctx context.Context) error {
	return harness.Poll(ctx, podBound, func(ctx context.Context) error { return a.g.drop(ctx, a.owner) })
}

func (a *act) podCheckpoint(ctx context.Context) error {
	return a.podGodwit(ctx, a.owner, "checkpoint", "--operation", a.id, a.g.name)
}

func (a *act) podWake(ctx context.Context) error { return a.wakes(ctx, a.making(a.g, a.to)) }

// podWakeKilled wakes the pod while the containerd of its node is killed, and started again by its manager.
func (a *act) podWakeKilled(ctx context.Context) error {
	m := a.making(a.g, a.to)
	m.between = func(ctx context.Context) error {
		d := a.daemon("containerd", a.to)
		if err := d.kill(); err != nil { // a fault was faster
			return err
		}
		a.log("  %s: %s is killed", a, d)
		return d.release(context.WithoutCancel(ctx))
	}
	return a.wakes(ctx, m)
}

// wakes makes the pod that sleeps, and waits until it is heard.
func (a *act) wakes(ctx context.Context, m *making) error {
	begun := time.Now()
	if err := m.again(ctx); err != nil {
		return err
	}
	return harness.Poll(ctx, bootBound, func(context.Context) error {
		if !a.g.last().at.After(begun) {
			return fmt.Errorf("pod %s was made on node %s, and is not heard", a.g.name, a.to.Name)
		}
		return nil
	})
}

// incomplete is how long a pod lacks a container that it needs: a pod that runs without it has run by then.
const incomplete = 5 * time.Second

// podWakeRemoved begins a wake, and removes the sandbox before all containers are started. The pod sleeps on.
func (a *act) podWakeRemoved(ctx context.Context) error {
	m := a.making(a.g, a.to)
	m.names = []string{sideContainer}
	err := m.make(ctx)
	select {
	case <-time.After(incomplete):
	case <-ctx.Done():
		return ctx.Err()
	}
	a.log("  %s: the sandbox is removed now: %v", a, err)
	return harness.Poll(ctx, podBound, func(ctx context.Context) error { return a.g.drop(ctx, a.to) })
}

func (a *act) podMove(ctx context.Context) error { return a.moves(ctx, func(context.Context) {}) }

// podMoveEnding moves the pod, and has a container end meanwhile: before the pod leaves, or never.
func (a *act) podMoveEnding(ctx context.Context) error {
	return a.moves(ctx, func(ctx context.Context) {
		a.g.set(func() { a.g.pod.loose = true })
		err := a.endSide(ctx)
		a.log("  %s: its second container is stopped: %v", a, err)
	})
}

// moves orders a move, and makes the pod where it goes until the order is over.
func (a *act) moves(ctx context.Context, meanwhile func(context.Context)) error {
	over := make(chan error, 1)
	go func() {
		over <- a.podGodwit(ctx, a.asked, "migrate", a.g.name, "--to", a.to.Name, "--end-execs", "--operation", a.id,
			"--timeout", podBound.String())
	}()
	done := make(chan struct{})
	ending, cancel := context.WithCancel(ctx)
	go func() { defer close(done); meanwhile(ending) }()
	defer func() { cancel(); <-done }()
	m := a.making(a.g, a.to)
	for {
		made := m.make(ctx)
		select {
		case err := <-over:
			if err != nil {
				return err
			}
			return a.left(ctx)
		case <-time.After(time.Second):
			if made != nil {
				a.log("  %s: not made yet: %v", a, made)
			}
		}
	}
}

// podEnds has the second container end, which must never be heard again.
func (a *act) podEnds(ctx context.Context) error {
	a.g.set(func() { a.g.pod.loose = true })
	if err := a.endSide(ctx); err != nil {
		return err
	}
	a.g.pod.side.retire()
	return nil
}

func (a *act) endSide(ctx context.Context) error {
	id, err := a.running(ctx, sideContainer)
	if err == nil && id != "" {
		_, err = crictl(ctx, a.owner, "stop", "--timeout", "1", id)
	}
	return err
}

// podExec reads the first line of the first container's file.
func (a *act) podExec(ctx context.Context) error {
	id, err := a.running(ctx, mainContainer)
	if err == nil && id == "" {
		err = fmt.Errorf("CRI has no container of %s that runs", a.g.name)
	}
	if err != nil {
		return err
	}
	out, err := crictl(ctx, a.owner, "exec", "-s", id, "/bin/head", "-n", "1", "/data/journal")
	if err == nil && out != "" && a.g.excuses() == "" && a.g.vm() == a.begun && !a.g.stamped(out) {
		a.violation("pod %s has another's file: %q", a.g.name, out)
	}
	return err
}

// running answers a container of the pod that runs on the owner's node; empty: CRI has none.
func (a *act) running(ctx context.Context, name string) (id string, err error) {
	ready, err := a.g.sandboxes(ctx, a.owner, "ready")
	if err != nil || len(ready) == 0 {
		return "", err
	}
	return runningIn(ctx, a.owner, ready[0], name)
}

// runningIn is running of a sandbox.
func runningIn(ctx context.Context, n *harness.Node, sandbox, name string) (id string, err error) {
	return crictl(ctx, n, "ps", "-q", "--state", "running", "--pod", sandbox, "--name", "^"+name+"$")
}
