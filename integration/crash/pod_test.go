//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// podStep is a call of a pod's life.
type podStep struct {
	name   string
	absent bool // it makes the pod
	begin  func(*podWorld, context.Context) error
	call   func(*podWorld, context.Context) error
}

func podSteps() []podStep {
	calls := func(args ...string) func(*podWorld, context.Context) error {
		return func(w *podWorld, ctx context.Context) error {
			_, err := w.crictl(ctx, append(slices.Clone(args), w.third)...)
			return err
		}
	}
	pod := func(args ...string) func(*podWorld, context.Context) error {
		return func(w *podWorld, ctx context.Context) error {
			_, err := w.crictl(ctx, append(slices.Clone(args), w.pod)...)
			return err
		}
	}
	return []podStep{
		{"runp", true, nil, func(w *podWorld, ctx context.Context) error {
			config, err := w.sandbox()
			if err == nil {
				_, err = w.crictl(ctx, "runp", "--runtime", "godwit", config)
			}
			return err
		}},
		{"start", false, (*podWorld).createThird, calls("start")},
		{"exec", false, (*podWorld).startThird, func(w *podWorld, ctx context.Context) error {
			_, err := w.crictl(ctx, "exec", "-s", w.third, "true")
			return err
		}},
		{"stop", false, (*podWorld).startThird, calls("stop", "--timeout", "30")},
		{"rm", false, (*podWorld).startThird, calls("rm", "-f")},
		{"stopp", false, (*podWorld).startThird, pod("stopp")},
	}
}

func (w *podWorld) createThird(ctx context.Context) (err error) {
	w.third, err = w.create(ctx, "third", podImages[1])
	return err
}

func (w *podWorld) startThird(ctx context.Context) error {
	err := w.createThird(ctx)
	if err == nil {
		_, err = w.crictl(ctx, "start", w.third)
	}
	return err
}

// podSelection is what runs without GODWIT_CRASH=full: each step, each program, and each change of the guest.
var podSelection = []string{
	"start/before node pod.AddDisk/shim",
	"start/after node pod.AddDisk/containerd",
	"start/before node pod.AddContainer/vmm",
	"start/after node pod.AddContainer/shim",
	"start/before node Task.Start/containerd",
	"start/after node Task.Start/containerd",
	"exec/before node Task.Exec/containerd",
	"stop/before node Task.Kill/containerd",
	"rm/before node Task.Kill/containerd",
	"rm/before node pod.RemoveContainer/containerd",
	"rm/after node pod.RemoveContainer/shim",
	"stopp/before node Task.Kill/containerd",
	"runp/after node Task.Create/containerd",
	"runp/before node Task.Start/shim",
}

var podVictims = []victim{shimProcess, containerds, vmmProcess, daemon}

// TestCrashPod kills the shim, the VMM, containerd and godwitd at each point of the life of a pod with 3 containers.
// A pod whose VM lives on can be used, and its two other containers have noticed nothing. Any pod can be removed, and
// nothing is left of it. There is never a second VM.
func TestCrashPod(t *testing.T) {
	full := os.Getenv("GODWIT_CRASH") == "full"
	w := newPodWorld(t)
	for _, s := range podSteps() {
		t.Run(s.name, func(t *testing.T) {
			names := selected(podSelection, s.name)
			if full {
				names = w.survey(t, s)
			}
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					if err := w.play(t.Context(), s, name); err != nil {
						t.Error(err)
						if err := w.remove(t.Context()); err != nil { // the next case does not pay for this one
							t.Fatal(err)
						}
					}
				})
			}
		})
	}
	if err := w.remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// selected are the cases of a step.
func selected(all []string, step string) (names []string) {
	for _, name := range all {
		if at, ok := strings.CutPrefix(name, step+"/"); ok {
			names = append(names, at)
		}
	}
	return names
}

// survey lists the points of a step that no death disturbs, with each program.
func (w *podWorld) survey(t *testing.T, s podStep) (names []string) {
	ctx := t.Context()
	if err := errors.Join(w.begin(ctx, s), s.call(w, ctx)); err != nil {
		t.Fatal(err)
	}
	all, err := w.passed(w.Node, here)
	if err = errors.Join(err, w.forget(w.Node), w.remove(ctx)); err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		t.Logf("point: %s", e)
		for _, who := range podVictims {
			names = append(names, e.String()+"/"+string(who))
		}
	}
	return names
}

func (w *podWorld) begin(ctx context.Context, s podStep) error {
	err := w.ready(ctx, s.absent)
	if err == nil && s.begin != nil {
		err = s.begin(w, ctx)
	}
	return errors.Join(err, w.forget(w.Node))
}

// play kills a program at a side of a point.
func (w *podWorld) play(ctx context.Context, s podStep, name string) error {
	at, who, _ := strings.Cut(name, "/")
	e, ok := edgeOf(at)
	if !ok {
		return fmt.Errorf("%q is no point", at)
	}
	if err := w.begun(ctx, s, e); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	_, err := w.hurt(ctx, e, victim(who), func(ctx context.Context) error { return s.call(w, ctx) }, w.restart)
	if err != nil {
		return err
	}
	return errors.Join(w.forget(w.Node), w.judge(ctx, s, victim(who)))
}

// hurt makes a call, kills a program of the node while the call is at a side of a point, and starts the program again.
// It answers what the call came to, which may well be an error.
func (w *podWorld) hurt(ctx context.Context, e edge, who victim, call func(context.Context) error,
	restart func(context.Context, victim) error) (answer, err error) {
	hold, err := w.arm(w.Node, e)
	if err != nil {
		return nil, err
	}
	defer hold.release()
	called := make(chan error, 1)
	go func() { called <- call(ctx) }()
	over := func() error {
		if len(called) > 0 {
			return errOver
		}
		return nil
	}
	if _, err := hold.reached(ctx, over); err != nil {
		return nil, fmt.Errorf("reach the point: %w", err)
	}
	if err := w.kill(ctx, who); err != nil && !errors.Is(err, errNoShim) {
		return nil, err
	}
	hold.release()
	if err := restart(ctx, who); err != nil {
		return nil, err
	}
	select {
	case answer = <-called:
		return answer, nil
	case <-ctx.Done():
		return nil, errors.New("the call is not answered")
	}
}

func (w *podWorld) kill(ctx context.Context, who victim) error {
	var pid int
	var err error
	switch who {
	case containerds:
		return w.Containerd.Kill()
	case daemon:
		return w.Godwitd.Kill()
	case vmmProcess:
		pid, err = w.vmm()
	default:
		pid, err = w.shim()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoShim, err)
	}
	return kill(ctx, pid)
}

// restart starts godwitd again; containerd is started by another program.
func (w *podWorld) restart(ctx context.Context, who victim) error {
	switch who {
	case daemon:
		return w.StartGodwitd(ctx)
	case containerds:
		return w.back(ctx)
	}
	return nil
}

// judge looks at what has become of the pod.
func (w *podWorld) judge(ctx context.Context, s podStep, who victim) error {
	vmms, err := w.VMMs()
	if err != nil || len(vmms) > 1 {
		return fmt.Errorf("the node has VMMs %v: %w", vmms, err)
	}
	if s.absent || s.name == "stopp" {
		return w.remove(ctx)
	}
	if who == shimProcess || who == vmmProcess {
		for _, id := range append(slices.Clone(w.fixed), w.third) {
			if err := w.exited(ctx, id); err != nil {
				return err
			}
		}
		return w.remove(ctx)
	}
	for _, id := range w.fixed {
		if err := w.serves(ctx, id); err != nil {
			return fmt.Errorf("another container: %w", err)
		}
	}
	if err := w.drop(ctx); err != nil {
		return fmt.Errorf("remove the third container: %w", err)
	}
	if err := w.startThird(ctx); err != nil {
		return fmt.Errorf("make the third container again: %w", err)
	}
	return errors.Join(w.serves(ctx, w.third), w.drop(ctx))
}

// begun is a step in a pod that has never had a third container: the disk of its image is not there.
func (w *podWorld) begun(ctx context.Context, s podStep, e edge) error {
	if s.name == "start" && (strings.HasPrefix(e.name, "pod.") || strings.HasPrefix(e.name, "journal.")) {
		if err := w.remove(ctx); err != nil {
			return err
		}
	}
	return w.begin(ctx, s)
}

// exited waits until CRI says that a container does not run. One that was removed does not.
func (w *podWorld) exited(ctx context.Context, id string) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		state, err := w.state(ctx, id)
		switch {
		case err != nil && strings.Contains(err.Error(), "not found"):
			return nil
		case err == nil && state == "CONTAINER_RUNNING":
			err = fmt.Errorf("container %s is %s, and its VM has ended", id, state)
		}
		return err
	})
}
