package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/process"
)

// commandTimeout bounds a call under a context without a deadline: a VMM that hangs is
// an error, never a wait for ever.
const commandTimeout = 30 * time.Second

// Machine is one Cloud Hypervisor process.
type Machine struct {
	log    *slog.Logger
	api    *client
	proc   *process.Process
	events chan vmm.Event
	done   chan struct{}

	// turn is held while the VM is changed: the VMM works on one call at a time, and
	// parallel ones would only hide that one hangs.
	turn chan struct{}
	plan *plan // how the VM is made; nil once it is, and after Adopt; held with turn
	lost bool  // a call was not answered: the VM's state is not known; held with turn
	// standing: the VMM has answered that the VM is paused, and was not asked to resume it since. So it is not asked again
	// while the VM stands still. Held with turn.
	standing bool
	// torn: a vm.pause may have ended half way. The VMM says that the VM runs then, and its vCPUs stand still or are about
	// to. Held with turn.
	torn bool
	mtu  func(tap, mtu int) error
	// confined: the process has namespaces of its own. prepare seals it.
	confined bool
	files    shower // of the process; what it sees while it is confined

	waiters process.Waiters[event]

	mu       sync.Mutex // guards what follows
	info     vmm.Process
	hot      map[string]int // slots of disks that were plugged in, by the caller's id
	exit     vmm.Exit
	ending   ending
	detached bool
	reader   chan struct{} // closed when no more events come
	stop     func() error  // ends the reader
}

var _ vmm.Machine = (*Machine)(nil)

// What vm.info calls the states of a VM.
const (
	stateCreated = "Created"
	stateRunning = "Running"
	statePaused  = "Paused"
)

func newMachine(log *slog.Logger, p vmm.Process, proc *process.Process) *Machine {
	return &Machine{
		log: log.With("vmm", Name, "pid", p.PID), api: newClient(p.Control), proc: proc, files: proc, info: p,
		events: make(chan vmm.Event, 64), done: make(chan struct{}), reader: make(chan struct{}),
		turn: make(chan struct{}, 1), hot: map[string]int{},
	}
}

// prepare makes the VM of a process just started, unless it waits for its state.
func (m *Machine) prepare(ctx context.Context) error {
	if m.plan.err != nil {
		return m.plan.err
	}
	return m.change(ctx, func(ctx context.Context, _ sender) error {
		if err := m.api.ping(ctx); err != nil {
			return err
		}
		if m.confined {
			// It has its libraries and KVM. The descriptors that it opens again it finds in
			// its own /proc.
			if err := m.proc.Seal(m.plan.kept()...); err != nil {
				return err
			}
		}
		if err := m.showAll(m.plan.shown); err != nil {
			return err
		}
		if m.plan.incoming {
			return nil
		}
		if err := m.api.create(ctx, m.plan.vm); err != nil {
			return err
		}
		for _, t := range m.plan.taps {
			if err := m.api.addNet(ctx, netOf(t.nic), t.fd); err != nil {
				return err
			}
			m.noteNIC(t.nic.ID, true)
		}
		return m.made()
	})
}

// made notes the disks in hot slots of a VM that exists now, and drops the plan of it.
func (m *Machine) made() error {
	for _, s := range m.plan.shown {
		m.noteDisk(s.disk.ID, s.disk.Slot)
	}
	err := m.plan.close()
	m.plan = nil
	return err
}

// identify asks an adopted VMM who it is and which NICs it has.
func (m *Machine) identify(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := m.api.ping(ctx); err != nil {
		return err
	}
	info, err := m.api.info(ctx)
	if errdefs.IsNotFound(err) {
		return nil // it waits for a state that only its maker could load
	}
	if err != nil || info.State == stateCreated {
		return err // before the boot no device is there to be asked for
	}
	m.info.NICs, m.info.Disks = nil, nil
	for id := range info.DeviceTree {
		if nic, ok := strings.CutPrefix(id, nicID("")); ok {
			m.info.NICs = append(m.info.NICs, nic)
		}
		m.noteHot(id)
	}
	slices.Sort(m.info.NICs)
	slices.Sort(m.info.Disks)
	return m.hideUnused()
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, commandTimeout)
}

// state is what the VM does, empty before one exists.
func (m *Machine) state(ctx context.Context) (string, error) {
	info, err := m.api.info(ctx)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return info.State, nil
}

// booted moves the sockets that a boot has made, and removes what has been booted. It may be
// called again.
func (m *Machine) booted() error {
	err := m.publish()
	if m.Process().Reboots {
		return err
	}
	home, _ := m.workPaths()
	return errors.Join(err, removePayload(home))
}

// PowerButton is pressed once.
func (m *Machine) PowerButton(ctx context.Context) error {
	err := m.change(ctx, func(_ context.Context, send sender) error { return send(m.api.powerButton) })
	if err != nil {
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
