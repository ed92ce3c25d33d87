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
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// cli is the program that a user has called.
const cli victim = "cli"

// here is the one node of these cases.
const here role = "node"

// vmState is how the VM is before a verb.
type vmState string

const (
	isAbsent  vmState = "absent"
	isRunning vmState = "running"
	isStopped vmState = "stopped"
)

// verb of the command line. again repeats it after a death, and looks whether all is as after one that was not hurt.
type verb struct {
	name  string
	needs vmState
	args  func(*verbWorld) []string
	again func(*verbWorld, context.Context) error
}

func verbs() []verb {
	args := func(args ...string) func(*verbWorld) []string { return func(*verbWorld) []string { return args } }
	return []verb{
		{"run", isAbsent, args(runArgs...), (*verbWorld).runAgain},
		{"stop", isRunning, args("stop", verbVM), (*verbWorld).stopAgain},
		{"start", isStopped, args("start", verbVM), (*verbWorld).startAgain},
		{"restart", isRunning, args("restart", verbVM), (*verbWorld).restartAgain},
		{"rename", isRunning, args("rename", verbVM, "renamed"), (*verbWorld).renameAgain},
		{"checkpoint", isRunning, args("checkpoint", "--name", "kept", verbVM), (*verbWorld).checkpointAgain},
		{"pin", isRunning, func(w *verbWorld) []string { return []string{"snapshot", "pin", "--name", "pinned", w.digest} },
			(*verbWorld).pinAgain},
		{"cp", isRunning, func(w *verbWorld) []string { return []string{"cp", w.next, verbVM + ":/data"} },
			(*verbWorld).copyAgain},
		{"commit", isRunning, args("commit", verbVM, committedImage), (*verbWorld).commitAgain},
		{"rm", isRunning, args("rm", "-f", verbVM), (*verbWorld).removeAgain},
	}
}

const verbVM = "web"

// runArgs make a VM that ends when it is asked to.
var runArgs = []string{"run", "-d", "--name", verbVM, "--memory", "96MiB", images.Busybox, "sh", "-c", initText}

// verbSelection is what runs without GODWIT_CRASH=full: each verb, each program, and all sides of a commit point.
var verbSelection = []string{
	"run/after node Containers.Create/cli",
	"run/after node record.OWNER/godwitd",
	"run/after node Tasks.Create/cli",
	"stop/before node Task.Kill/shim",
	"stop/after node Task.Kill/godwitd",
	"start/after node Tasks.Delete/cli",
	"start/before node Tasks.Start/shim",
	"restart/after node Tasks.Create/shim",
	"rename/after node record.OWNER/godwitd",
	"rename/after node Records.Name/cli",
	"rename/before node Containers.Update/shim",
	"checkpoint/after node record.COMMITTED/godwitd",
	"pin/after node record.OWNER/cli",
	"cp/after node Tasks.Start #2/cli",
	"cp/before node Task.CloseIO/shim",
	"commit/before node Images.Create/cli",
	"rm/after node Tasks.Delete/cli",
	"rm/after node record.OWNER #2/godwitd",
	"rm/before node Containers.Delete/cli",
}

// TestCrashVerbs kills the command line, godwitd and the shim at each point that they register in each verb that
// changes a VM. The verb is repeated then, as a user does.
func TestCrashVerbs(t *testing.T) {
	full, whole := os.Getenv("GODWIT_CRASH") == "full", t
	var w *verbWorld
	for _, v := range verbs() {
		t.Run(v.name, func(t *testing.T) {
			names := slices.DeleteFunc(slices.Clone(verbSelection), func(s string) bool {
				return !strings.HasPrefix(s, v.name+"/")
			})
			if full {
				names = w.mustBe(whole, &w).survey(t, v)
			}
			for _, name := range names {
				name := strings.TrimPrefix(name, v.name+"/")
				if !t.Run(name, func(t *testing.T) {
					if err := w.mustBe(whole, &w).play(t.Context(), v, name); err != nil {
						t.Fatal(errors.Join(err, w.Logs()))
					}
				}) && w != nil { // the next case does not pay for this one
					w.Keep(t.Name() + "/" + name)
					w.Close()
					w = nil
				}
			}
		})
	}
	if w != nil {
		if err := w.removeAgain(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// survey lists the points of a verb that no death disturbs, with each program.
func (w *verbWorld) survey(t *testing.T, v verb) (names []string) {
	ctx := t.Context()
	err := w.ready(ctx, v.needs)
	if err == nil {
		err = w.forget(w.n)
	}
	if err == nil {
		err = w.godwit(ctx, v.args(w)...)
	}
	all, perr := w.passed(w.n, here)
	if err = errors.Join(err, perr, w.forget(w.n), v.again(w, ctx)); err != nil {
		t.Fatal(errors.Join(err, w.Logs()))
	}
	for _, e := range all {
		t.Logf("point: %s", e)
		for _, who := range []victim{cli, daemon, shimProcess} {
			names = append(names, e.String()+"/"+string(who))
		}
	}
	return names
}

// play kills a program at a side of a point.
func (w *verbWorld) play(ctx context.Context, v verb, name string) error {
	point, who, _ := strings.Cut(name, "/")
	e, ok := edgeOf(point)
	if !ok {
		return fmt.Errorf("%q is no point", point)
	}
	if err := errors.Join(w.ready(ctx, v.needs), w.forget(w.n)); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	hold, err := w.arm(w.n, e)
	if err != nil {
		return err
	}
	defer hold.release()
	call := w.call(ctx, v.args(w)...)
	pid, err := hold.reached(ctx, call.over)
	if err == nil && pid == 0 {
		err = errors.New("nobody stands there any more")
	}
	if err != nil {
		return fmt.Errorf("reach the point: %w", errors.Join(err, call.end(ctx)))
	}
	if err := w.kill(ctx, victim(who), call, pid); err != nil && !errors.Is(err, errNoShim) {
		return err
	}
	hold.release()
	if victim(who) == daemon {
		if err := w.n.StartGodwitd(ctx); err != nil {
			return err
		}
	}
	if err := call.end(ctx); err != nil {
		return err
	}
	if err := errors.Join(w.forget(w.n), v.again(w, ctx)); err != nil {
		return fmt.Errorf("%s once more: %w", v.name, err)
	}
	return nil
}

// errNoShim: the point is one at which the VM has no shim, so none is killed.
var errNoShim = errors.New("the VM has no shim there")

// kill ends one of the programs. pid is the one that stands at the point.
func (w *verbWorld) kill(ctx context.Context, who victim, call *verbCall, pid int) error {
	switch who {
	case cli:
		return call.kill()
	case daemon:
		return w.n.Godwitd.Kill()
	}
	shim, err := w.shim(pid)
	if err != nil {
		return err
	}
	return kill(ctx, shim)
}

// verbCall is the command line at work.
type verbCall struct {
	kill  func() error
	ended chan struct{}
	err   error
}

// call runs godwit, which is to end by itself if it is not killed.
func (w *verbWorld) call(ctx context.Context, args ...string) *verbCall {
	c := &verbCall{ended: make(chan struct{})}
	cmd := w.n.Command(ctx, "godwit", append([]string{"--config", w.n.Config}, args...)...)
	c.err = w.n.Enter(cmd.Start)
	c.kill = func() error { return cmd.Process.Kill() }
	go func() {
		defer close(c.ended)
		if c.err == nil {
			c.err = cmd.Wait()
		}
	}()
	return c
}

// over says that no program comes by any more.
func (c *verbCall) over() error {
	select {
	case <-c.ended:
		return fmt.Errorf("%w: %w", errOver, c.err)
	default:
		return nil
	}
}

// end waits for the end of the call, whatever it is.
func (c *verbCall) end(ctx context.Context) error {
	select {
	case <-c.ended:
		return nil
	case <-time.After(callBound):
		return errors.New("the call does not end")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// repeat calls godwit until it succeeds, or says a word that will do. A node gives up a VM of which nothing is left
// after a minute.
func (w *verbWorld) repeat(ctx context.Context, enough string, args ...string) error {
	return harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		err := w.godwit(ctx, args...)
		if run, ok := errors.AsType[*harness.RunError](err); ok && enough != "" && strings.Contains(run.Stderr, enough) {
			return nil
		}
		return err
	})
}
