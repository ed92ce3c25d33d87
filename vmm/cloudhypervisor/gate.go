package cloudhypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/vmm/process"
)

const (
	gateLook   = 500 * time.Microsecond // between two looks at whether the VMM waits
	leaseBound = time.Second            // on how long another process may still have the file
)

// gate holds a restore after the VMM has mapped RAM, and before it touches any. One call does both.
//
// The state that the VMM gets says that some RAM is to be read from ramFile. The VMM opens this file in between, for no
// other reason. Nothing is in the file, so nothing is read. The shim has a lease on it: an open waits
// until the lease is given back.
type gate struct {
	lease *os.File
	*plan
}

// gate answers a gate in the VMM's directory, and the state that leads to it. Where RAM is not tracked, gate is nil. It
// may also be nil where no pages come while the VM runs.
func (m *Machine) gate(ctx context.Context, home string, state []byte) (*gate, []byte, error) {
	if m.plan.mapped == nil {
		return nil, state, nil
	}
	g, gated, err := m.plan.gate(ctx, home, state)
	if err != nil && !m.plan.must {
		m.log.Warn("the VMM cannot be held back at its restore", "error", err)
		return nil, state, os.RemoveAll(filepath.Join(home, ramFile))
	}
	return g, gated, err
}

func (p *plan) gate(ctx context.Context, home string, state []byte) (*gate, []byte, error) {
	state, err := withRange(state)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(home, ramFile)
	if err := writeInput(path, nil, p.user); err != nil {
		return nil, nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := takeLease(ctx, file); err != nil {
		err = fmt.Errorf("hold the VMM back by a lease on %s: put the directory on a tmpfs: %w: %w", path,
			errdefs.ErrFailedPrecondition, err)
		return nil, nil, errors.Join(err, file.Close())
	}
	return &gate{file, p}, state, nil
}

// hasLeases tells whether this kernel gives leases on files in memory, as the directories of VMs are.
func hasLeases(ctx context.Context) bool {
	fd, err := unix.MemfdCreate("lease", unix.MFD_CLOEXEC)
	if err != nil {
		return false
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0) // a lease is on what was opened alone
	if errors.Join(err, unix.Close(fd)) != nil {
		return false
	}
	defer file.Close()
	return takeLease(ctx, file) == nil
}

// takeLease takes the lease on a file that is open nowhere else. A process that the shim starts at this moment may have
// the descriptor that wrote it, until its exec.
func takeLease(ctx context.Context, file *os.File) error {
	for end := time.Now().Add(leaseBound); ; retry.Sleep(ctx, gateLook) {
		err := setLease(file, unix.F_WRLCK)
		if !errors.Is(err, unix.EAGAIN) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

func setLease(file *os.File, kind int) error {
	_, err := process.Control(file, func(fd int) (int, error) {
		return unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, kind)
	})
	return err
}

// during makes the call that restores the VM. After an error the VMM may wait at the gate.
func (g *gate) during(ctx context.Context, restore func(context.Context) error) error {
	if g == nil {
		return restore(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	passed := make(chan error, 1)
	go func() {
		err := g.pass(ctx)
		if err != nil {
			cancel(err)
		}
		passed <- err
	}()
	err := restore(ctx)
	cancel(errNoGate)
	gateErr := <-passed
	switch missed := errors.Is(gateErr, errNoGate); {
	case gateErr == nil, missed && err != nil, missed && !g.must:
		return err
	}
	return gateErr
}

// errNoGate is of a VMM that was restored, or has refused to be, without a wait.
var errNoGate = fmt.Errorf("it has restored the VM without a word in between: this version is not known; set "+
	"worker.restore to eager and worker.tracking to content: %w", errdefs.ErrFailedPrecondition)

// pass waits until the VMM does, calls mapped, and lets the VMM go on.
func (g *gate) pass(ctx context.Context) error {
	for {
		lease, err := process.Control(g.lease, func(fd int) (int, error) {
			return unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0)
		})
		if err != nil {
			return fmt.Errorf("look whether the VMM waits: %w", err)
		}
		if lease != unix.F_WRLCK {
			break
		}
		if retry.Sleep(ctx, gateLook); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if err := g.mapped(ctx); err != nil {
		return err
	}
	if err := setLease(g.lease, unix.F_UNLCK); err != nil {
		return fmt.Errorf("let the VMM go on: %w", err)
	}
	return nil
}

// close opens the gate, if it is still closed.
func (g *gate) close() error {
	if g == nil {
		return nil
	}
	return g.lease.Close()
}

// withRange is a state, which checkState has found to be good, by which the VMM opens ramFile.
func withRange(state []byte) ([]byte, error) {
	const ranges = `{"data":[{"gpa":0,"length":4096}]}`
	state, err := edit(state, func(text json.RawMessage) (json.RawMessage, error) { // RAM's state is JSON in a string
		var ram string
		if err := json.Unmarshal(text, &ram); err != nil {
			return nil, err
		}
		changed, err := edit([]byte(ram), func(json.RawMessage) (json.RawMessage, error) {
			return json.RawMessage(ranges), nil
		}, "memory_ranges")
		if err != nil {
			return nil, err
		}
		return json.Marshal(string(changed))
	}, "snapshots", "memory-manager", "snapshot_data", "state")
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", stateFile, errdefs.ErrInvalidArgument, err)
	}
	return state, nil
}

// edit changes what lies at a path in objects of JSON. All else stays, also what nothing here knows.
func edit(in json.RawMessage, change func(json.RawMessage) (json.RawMessage, error), path ...string) (json.RawMessage,
	error) {
	if len(path) == 0 {
		return change(in)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(in, &object); err != nil {
		return nil, err
	}
	changed, err := edit(object[path[0]], change, path[1:]...)
	if err != nil {
		return nil, err
	}
	object[path[0]] = changed
	return json.Marshal(object)
}
