package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is a daemon started by the harness.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended
}

// spawn starts a daemon inside a holder's namespaces with its output in a log file.
func (h *Harness) spawn(in *nodeInit, logName string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(h.Dir, "log", logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	// Its own group: an interrupt on the terminal reaches the harness only, which ends
	// its daemons in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := in.enter(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", logName, err)
	}
	p := &Process{name: logName, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID on the host.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited reports an early end as an error.
func (p *Process) Exited() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %s", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM, after ten seconds with SIGKILL, which is an error.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

func (p *Process) end(sig syscall.Signal) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("stop %s: it did not end within 10s", p.name)
	}
}

// ready polls a daemon until ask answers nil, and gives up at once when it has ended.
func (p *Process) ready(ctx context.Context, timeout time.Duration, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := Poll(ctx, timeout, func(ctx context.Context) error {
		if err := p.Exited(); err != nil {
			cancel(err)
			return err
		}
		return ask(ctx)
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", p.name, err)
	}
	return nil
}
