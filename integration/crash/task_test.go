//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/integration/harness"
)

// guestInit is the process 1 of the guest.
const guestInit victim = "guest"

// What init may be said to have ended with: killed with its VM; asked by the test, which
// shows that it lived on; never run; or none of that decides.
var (
	dies     = []uint32{137}
	survive  = []uint32{asked}
	unborn   = []uint32{0, 137}
	whatever = []uint32{0, asked, 137}
)

// taskPoint is a point in the life of a task, and with which status each death there ends it.
type taskPoint struct {
	call, point string
	reach       func(*taskRun, context.Context) error
	comes       map[victim][]uint32
}

func taskPoints() []taskPoint {
	return []taskPoint{
		{"create", "undecided", (*taskRun).deciding, map[victim][]uint32{shimProcess: dies, daemon: unborn,
			containerds: unborn}},
		{"create", "made", (*taskRun).made, map[victim][]uint32{shimProcess: dies, daemon: unborn, containerds: unborn}},
		{"create", "answered", (*taskRun).created, map[victim][]uint32{shimProcess: dies, daemon: unborn,
			containerds: unborn}},
		{"start", "VMM launched", (*taskRun).launched, map[victim][]uint32{shimProcess: dies, vmmProcess: dies,
			daemon:      survive,
			containerds: whatever}},
		{"start", "guest boots", (*taskRun).booting, map[victim][]uint32{shimProcess: dies, vmmProcess: dies, daemon: survive,
			containerds: whatever}},
		{"start", "init runs", (*taskRun).started, map[victim][]uint32{shimProcess: dies, vmmProcess: dies, daemon: survive,
			containerds: survive}},
		{"start", "answered", (*taskRun).runs, map[victim][]uint32{shimProcess: dies, vmmProcess: dies, guestInit: dies,
			daemon: survive, containerds: survive}},
		{"exec", "added", (*taskRun).execAdded, map[victim][]uint32{shimProcess: dies, vmmProcess: dies,
			containerds: survive}},
		{"exec", "starting", (*taskRun).execStarting, map[victim][]uint32{shimProcess: dies, vmmProcess: dies,
			daemon:      survive,
			containerds: survive}},
		{"exec", "runs", (*taskRun).execRuns, map[victim][]uint32{shimProcess: dies, vmmProcess: dies, guestInit: dies,
			daemon: survive, containerds: survive}},
		{"kill", "on its way", (*taskRun).killing, map[victim][]uint32{shimProcess: dies, vmmProcess: dies, daemon: survive,
			containerds: survive}},
		{"kill", "ended, unsaid", (*taskRun).unsaid, map[victim][]uint32{shimProcess: {asked, 137}, daemon: survive,
			containerds: survive}},
		{"delete", "ended", (*taskRun).exited, map[victim][]uint32{shimProcess: {asked, 137}, daemon: survive,
			containerds: survive}},
		{"delete", "freed", (*taskRun).freed, map[victim][]uint32{shimProcess: {asked, 137}, daemon: survive,
			containerds: survive}},
	}
}

// taskSelection is what runs without GODWIT_CRASH=full: each kind of process, and each
// call.
var taskSelection = []string{
	"create/undecided/containerd", "create/made/shim", "start/VMM launched/shim", "start/guest boots/vmm",
	"start/answered/guest",
	"exec/runs/containerd", "kill/on its way/shim", "kill/ended, unsaid/containerd", "delete/freed/shim",
}

// TestCrashTask kills each program at each point of create, start, exec, kill and delete.
// All cases share a node, an id and a network namespace: each one shows
// that the last one left everything in order.
func TestCrashTask(t *testing.T) {
	full := os.Getenv("GODWIT_CRASH") == "full"
	var l *taskWorld
	for _, b := range taskPoints() {
		for _, v := range []victim{shimProcess, vmmProcess, guestInit, daemon, containerds} {
			want, ok := b.comes[v]
			name := b.call + "/" + b.point + "/" + string(v)
			if !ok || !full && !slices.Contains(taskSelection, name) {
				continue
			}
			if l == nil {
				l = newTaskWorld(t, "")
			}
			if !t.Run(name, func(t *testing.T) {
				if err := l.play(t, b, v, want); err != nil {
					t.Fatal(errors.Join(err, l.Logs()))
				}
			}) { // the next case does not pay for this one
				l.Close()
				l = nil
			}
		}
	}
}

func (l *taskWorld) play(t *testing.T, b taskPoint, v victim, want []uint32) error {
	ctx, cancel := context.WithTimeout(t.Context(), harness.Slow(4*time.Minute))
	defer cancel()
	l.seen.take()
	a := &taskRun{taskWorld: l}
	defer a.release()
	if err := b.reach(a, ctx); err != nil {
		return fmt.Errorf("reach the point: %w", err)
	}
	if err := a.kill(ctx, v); err != nil {
		return err
	}
	killed := time.Now()
	a.release()
	if err := a.restart(ctx, v); err != nil {
		return err
	}
	if err := a.answered(); err != nil {
		return err
	}
	got, err := a.end(ctx, survives(want))
	if err != nil {
		return err
	}
	if err := l.clean(ctx); err != nil {
		return err
	}
	if err := l.seen.wait(ctx, b.told(v, want)); err != nil {
		return err
	}
	all, codes := l.seen.take()
	got = append(got, codes...)
	t.Logf("after %.1f s: status %v, events %v", time.Since(killed).Seconds(), got, all)
	for _, status := range got {
		if !slices.Contains(want, status) || status != got[0] {
			return fmt.Errorf("init ended with %v, want one of %v, and always the same", got, want)
		}
	}
	if v == shimProcess && slices.Contains(codes, asked) {
		// containerd says by itself of a task whose shim died that it has ended, though it may
		// have been told before: with the same status, which is in the bundle.
		all = slices.Compact(all)
	}
	return inOrder(all)
}

// told are the events that must have come: all of a task whose Create was answered. What a containerd says before its
// first listener has come may be missed. A containerd that is killed at once takes along what it was told last.
func (b taskPoint) told(v victim, want []uint32) []string {
	switch {
	case b.call == "create" && b.point != "answered":
		return nil
	case b.call == "create" && v == containerds:
		return []string{"exit", "delete"}
	case v == containerds && !survives(want):
		return []string{"create"}
	case v == containerds && b.point == "freed":
		return []string{"create", "start", "exit"}
	case b.call == "create" || b.point == "VMM launched" || b.point == "guest boots":
		return []string{"create", "exit", "delete"}
	}
	return []string{"create", "start", "exit", "delete"}
}

// survives reports whether the VM must live on.
func survives(want []uint32) bool { return len(want) == 1 && want[0] == asked }

func (l *taskRun) kill(ctx context.Context, v victim) (err error) {
	var pid int
	switch v {
	case shimProcess:
		pid, err = l.shim()
	case vmmProcess:
		pid, err = l.vmm()
	case guestInit:
		return l.panics(ctx)
	case daemon:
		return l.n.Godwitd.Kill()
	case containerds:
		return l.n.Containerd.Kill()
	}
	if err != nil {
		return err
	}
	return kill(ctx, pid)
}

// restart starts what was killed, if it is a daemon.
func (l *taskRun) restart(ctx context.Context, v victim) error {
	switch v {
	case daemon:
		return l.n.StartGodwitd(ctx)
	case containerds:
		return l.restartContainerd(ctx)
	}
	return nil
}

// end looks at the task, ends it as a user does, and answers what it is said to have
// ended with.
func (l *taskRun) end(ctx context.Context, alive bool) (said []uint32, err error) {
	var task containerd.Task
	var status containerd.Status
	err = harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		ctx, cancel := short(ctx)
		defer cancel()
		task, status, err = l.taskWorld.task(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the task: %w", err)
	}
	if task != nil {
		if said, err = finish(ctx, task, status, alive); err != nil {
			return said, err
		}
	}
	box, err := l.client.LoadContainer(ctx, taskID)
	if err != nil {
		return said, err
	}
	return said, box.Delete(ctx, containerd.WithSnapshotCleanup)
}

// finish kills a task that has not ended, and deletes it. One that lives is asked to end.
func finish(ctx context.Context, task containerd.Task, status containerd.Status, alive bool) (said []uint32,
	err error) {
	signal := syscall.SIGKILL
	if alive {
		signal = syscall.SIGTERM
	}
	if status.Status == containerd.Running {
		wait, err := task.Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("wait for the task: %w", err)
		}
		code, err := killed(ctx, task, signal, wait)
		if err != nil {
			return nil, err
		}
		said = append(said, code)
	}
	s, err := task.Delete(ctx, containerd.WithProcessKill)
	if errdefs.IsNotFound(err) {
		return said, nil
	}
	if err != nil {
		return said, fmt.Errorf("delete the task: %w", err)
	}
	return append(said, s.ExitCode()), nil
}

// killed signals a task until it has ended: a shell that has not set its trap yet, being
// the first process of its container, does not hear SIGTERM.
func killed(ctx context.Context, task containerd.Task, signal syscall.Signal,
	wait <-chan containerd.ExitStatus) (uint32, error) {
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	for deadline := time.After(runBound); ; {
		if err := task.Kill(ctx, signal); err != nil && !errdefs.IsNotFound(err) {
			return 0, fmt.Errorf("kill the task: %w", err)
		}
		select {
		case s := <-wait:
			return s.ExitCode(), s.Error()
		case <-deadline:
			return 0, errors.New("the task does not end")
		case <-again.C:
		}
	}
}
