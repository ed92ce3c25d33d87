package qemu

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// commandTimeout bounds a command under a context without a deadline: a monitor that
// hangs is an error, never a wait for ever.
const commandTimeout = 30 * time.Second

// Machine is one QEMU process.
type Machine struct {
	log    *slog.Logger
	qmp    *qmp.Client
	proc   *process.Process
	events chan vmm.Event
	done   chan struct{}
	mapped func(context.Context) error // vmm.Config.Mapped; nil after Adopt

	waiters process.Waiters[qmp.Event]

	order sync.Mutex // of commands that start and stop the vCPUs

	mu       sync.Mutex // guards what follows
	held     bool       // Pause was called last: the VM is not to run by itself
	waiting  bool       // for space on the host
	stalls   int        // writes that found none
	info     vmm.Process
	exit     vmm.Exit
	shutdown shutdown // what QEMU said about its end
	saved    []byte   // device state of this pause
	incoming *os.File // takes the state of a VM that waits for it
	detached bool
}

var _ vmm.Machine = (*Machine)(nil)

func newMachine(log *slog.Logger, p vmm.Process, proc *process.Process) *Machine {
	return &Machine{
		log: log.With("vmm", Name, "pid", p.PID), proc: proc, info: p,
		events: make(chan vmm.Event, 64), done: make(chan struct{}),
	}
}

// execute runs a QMP command; see qmp.Client.Execute.
func (m *Machine) execute(ctx context.Context, command string, args, result any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return m.qmp.Execute(ctx, command, args, result)
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, commandTimeout)
}

// withGrace is ctx for what must not be left half done: it ends some time after ctx.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(cleanupTimeout, cancel) })
	return longer, func() { stop(); cancel() }
}

// status is QEMU's word for what the VM does: running, paused, prelaunch, inmigrate...
func (m *Machine) status(ctx context.Context) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := m.execute(ctx, "query-status", nil, &s)
	return s.Status, err
}

// Resume lets the vCPUs run.
func (m *Machine) Resume(ctx context.Context) error {
	m.order.Lock()
	defer m.order.Unlock()
	status, err := m.settledStatus(ctx)
	if err != nil {
		select {
		case <-m.qmp.Done(): // QEMU may live, and close it; a Machine connects once
			err = fmt.Errorf("%w: %w", vmm.ErrUnreachable, err)
		default:
		}
		return fmt.Errorf("resume VM: %w: %w", vmm.ErrNotResumed, err)
	}
	m.hold(false) // of a VM that runs, too: its Pause may have failed
	switch status {
	case "running":
		return nil
	case "inmigrate":
		// QEMU would take it for "run as soon as the state is there".
		return fmt.Errorf("resume VM: its state is not loaded: %w", errdefs.ErrFailedPrecondition)
	}
	m.setState(nil)
	if err := m.execute(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("resume VM: %w", err)
	}
	return nil
}

// Pause stops the vCPUs and waits for the requests that devices are working on.
func (m *Machine) Pause(ctx context.Context) error {
	m.order.Lock()
	defer m.order.Unlock()
	if err := ctx.Err(); err != nil { // the VM is to run on, should its disk be full
		return fmt.Errorf("pause VM: nothing is sent any more: %w", err)
	}
	m.hold(true)
	if err := m.execute(ctx, "stop", nil, nil); err != nil {
		return fmt.Errorf("pause VM: %w", err)
	}
	return nil
}

func (m *Machine) hold(held bool) {
	m.mu.Lock()
	m.held = held
	m.mu.Unlock()
}

// PowerButton is pressed once.
func (m *Machine) PowerButton(ctx context.Context) error {
	if err := m.execute(ctx, "system_powerdown", nil, nil); err != nil {
		return fmt.Errorf("press power button: %w", err)
	}
	return nil
}

// Kill ends the process and waits until it is gone.
func (m *Machine) Kill(ctx context.Context) error { return m.proc.End(ctx, m.done) }

// Process is what Adopt needs.
func (m *Machine) Process() vmm.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.info
	p.NICs, p.Disks = slices.Clone(p.NICs), slices.Clone(p.Disks)
	return p
}
