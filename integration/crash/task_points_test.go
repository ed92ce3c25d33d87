//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// taskRun is one task, brought to a named point and held there by what surrounds it: a hook
// that does not return, a process that is stopped. No program knows of it.
type taskRun struct {
	*taskWorld
	box   containerd.Container
	task  containerd.Task
	exec  containerd.Process
	holds []func()
	calls []chan error // of calls under way
}

// release ends every hold. It may be called twice.
func (l *taskRun) release() {
	for _, f := range l.holds {
		f()
	}
}

// call makes a call whose answer is not waited for: the point lies before it.
func (l *taskRun) call(f func() error) {
	done := make(chan error, 1)
	l.calls = append(l.calls, done)
	go func() { done <- f() }()
}

// answered waits for the calls under way; an answer may well be an error.
func (l *taskRun) answered() error {
	for _, c := range l.calls {
		select {
		case <-c:
		case <-time.After(runBound):
			return errors.New("a call is not answered")
		}
	}
	return nil
}

func (l *taskRun) stop(ctx context.Context, pid int) error {
	resume, err := stop(ctx, pid)
	if resume != nil {
		l.holds = append(l.holds, resume)
	}
	return err
}

// waiting holds the hooks of a kind and returns once call has come to them.
func (l *taskRun) waiting(ctx context.Context, kind string, call func() error) error {
	open, err := l.gated(kind)
	l.holds = append(l.holds, open)
	if err != nil {
		return err
	}
	l.call(call)
	return l.atHook(ctx, kind)
}

func (l *taskRun) newTask(ctx context.Context) (err error) {
	if l.box, err = l.container(ctx); err != nil {
		return err
	}
	l.task, err = l.box.NewTask(ctx, cio.NullIO)
	return err
}

// create begins the call.
func (l *taskRun) create(ctx context.Context) func() error {
	return func() error {
		_, err := l.box.NewTask(ctx, cio.NullIO)
		return err
	}
}

// deciding: the record, which says whether the VM may be made, is not read.
func (l *taskRun) deciding(ctx context.Context) (err error) {
	if l.box, err = l.container(ctx); err != nil {
		return err
	}
	if err := l.stop(ctx, l.n.Godwitd.PID()); err != nil {
		return err
	}
	l.call(l.create(ctx))
	err = harness.Poll(ctx, runBound, func(context.Context) error { _, err := l.shim(); return err })
	if err != nil {
		return err
	}
	// containerd's Create is in the shim once that has read the bundle.
	return harness.Poll(ctx, runBound, func(context.Context) error {
		_, err := os.Stat(filepath.Join(l.n.Dir, "state", "io.containerd.runtime.v2.task", "default", taskID,
			"godwit-config"))
		return err
	})
}

// made: everything is there, and Create is not answered.
func (l *taskRun) made(ctx context.Context) (err error) {
	if l.box, err = l.container(ctx); err != nil {
		return err
	}
	return l.waiting(ctx, "createRuntime", l.create(ctx))
}

func (l *taskRun) created(ctx context.Context) error { return l.newTask(ctx) }

// launched: the VMM runs, and the shim has not heard of it.
func (l *taskRun) launched(ctx context.Context) error {
	if err := l.newTask(ctx); err != nil {
		return err
	}
	l.call(func() error { return l.task.Start(ctx) })
	deadline := time.Now().Add(runBound)
	for time.Now().Before(deadline) { // without a pause: it says so within milliseconds
		pid, err := l.vmm()
		if err != nil {
			continue
		}
		if err := l.stop(ctx, pid); err != nil {
			return err
		}
		if note(l.n, taskID).Process.PID != 0 {
			return errors.New("the VMM is written down already: it was stopped too late")
		}
		return nil
	}
	return errors.New("no VMM starts")
}

// booting: the VMM is written down, and the guest does not answer.
func (l *taskRun) booting(ctx context.Context) error {
	if err := l.newTask(ctx); err != nil {
		return err
	}
	l.call(func() error { return l.task.Start(ctx) })
	err := harness.Poll(ctx, runBound, func(context.Context) error {
		if note(l.n, taskID).Process.PID == 0 {
			return errors.New("the VMM is not written down")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.stopVMM(ctx)
}

// stopVMM stops the VMM until release.
func (l *taskRun) stopVMM(ctx context.Context) error {
	pid, err := l.vmm()
	if err != nil {
		return err
	}
	return l.stop(ctx, pid)
}

// started: init runs, and Start is not answered.
func (l *taskRun) started(ctx context.Context) error {
	if err := l.newTask(ctx); err != nil {
		return err
	}
	return l.waiting(ctx, "poststart", func() error { return l.task.Start(ctx) })
}

func (l *taskRun) runs(ctx context.Context) error {
	if err := l.newTask(ctx); err != nil {
		return err
	}
	return l.task.Start(ctx)
}

// execute notes an exec.
func (l *taskRun) execute(ctx context.Context, id, text string) (containerd.Process, error) {
	return l.task.Exec(ctx, id, &specs.Process{Args: []string{"sh", "-c", text}, Cwd: "/", Env: []string{"PATH=/bin"}},
		cio.NullIO)
}

func (l *taskRun) execAdded(ctx context.Context) (err error) {
	if err := l.runs(ctx); err != nil {
		return err
	}
	l.exec, err = l.execute(ctx, "added", "sleep 1000")
	return err
}

// execStarting: the guest does not hear that an exec shall run.
func (l *taskRun) execStarting(ctx context.Context) error {
	if err := l.execAdded(ctx); err != nil {
		return err
	}
	if err := l.stopVMM(ctx); err != nil {
		return err
	}
	l.call(func() error { return l.exec.Start(ctx) })
	return l.awaitIdle(ctx)
}

func (l *taskRun) execRuns(ctx context.Context) error {
	if err := l.execAdded(ctx); err != nil {
		return err
	}
	return l.exec.Start(ctx)
}

// awaitIdle waits until the shim has nothing to do but to wait.
func (l *taskRun) awaitIdle(ctx context.Context) error {
	pid, err := l.shim()
	if err != nil {
		return err
	}
	return idle(ctx, pid)
}

// killing: the guest does not hear the signal.
func (l *taskRun) killing(ctx context.Context) error {
	if err := l.runs(ctx); err != nil {
		return err
	}
	if err := l.stopVMM(ctx); err != nil {
		return err
	}
	l.call(func() error { return l.task.Kill(ctx, syscall.SIGTERM) })
	return l.awaitIdle(ctx)
}

// unsaid: init has ended, and containerd, which is stopped, does not hear of it.
func (l *taskRun) unsaid(ctx context.Context) error {
	if err := l.runs(ctx); err != nil {
		return err
	}
	if err := l.stop(ctx, l.n.Containerd.PID()); err != nil {
		return err
	}
	return l.direct(ctx, func(ctx context.Context, shim taskapi.TTRPCTaskService) error {
		return harness.Poll(ctx, runBound, func(ctx context.Context) error {
			_, err := shim.Kill(ctx, &taskapi.KillRequest{ID: taskID, Signal: uint32(unix.SIGTERM)})
			if err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				return err
			}
			r, err := shim.State(ctx, &taskapi.StateRequest{ID: taskID})
			if err == nil && r.GetStatus() != tasktypes.Status_STOPPED {
				err = fmt.Errorf("the task is %s", r.GetStatus())
			}
			return err
		})
	})
}

func (l *taskRun) exited(ctx context.Context) error {
	if err := l.runs(ctx); err != nil {
		return err
	}
	wait, err := l.task.Wait(ctx)
	if err != nil {
		return err
	}
	_, err = killed(ctx, l.task, syscall.SIGTERM, wait)
	return err
}

// freed: nothing is left, and Delete is not answered.
func (l *taskRun) freed(ctx context.Context) error {
	if err := l.exited(ctx); err != nil {
		return err
	}
	return l.waiting(ctx, "poststop", func() error {
		_, err := l.task.Delete(ctx)
		return err
	})
}

// panics makes the guest's kernel do what it does when its process 1 dies.
func (l *taskRun) panics(ctx context.Context) error {
	p, err := l.execute(ctx, "panic", "echo c >/proc/sysrq-trigger")
	if err != nil {
		return err
	}
	pid, err := l.vmm()
	if err != nil {
		return err
	}
	l.call(func() error { return p.Start(ctx) })
	return harness.Poll(ctx, runBound, func(context.Context) error {
		if state, err := state(pid); err == nil && state != 'Z' && state != 'X' {
			return errors.New("the VMM of a guest that panicked runs")
		}
		return nil
	})
}
