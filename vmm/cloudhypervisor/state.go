package cloudhypervisor

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// What SaveState writes: the magic, the length as 8 bytes, little-endian, and the VMM's state.json. Its config.json is
// not in it: that of a restore is derived anew.
const (
	stateMagic = "GWCHST01"
	maxState   = 64 << 20
)

// SaveState writes the device state at the file's present offset. The VM must be paused;
// it can be saved again, and resumed, afterwards.
func (m *Machine) SaveState(ctx context.Context, to *os.File) error {
	var state []byte
	err := m.change(ctx, func(ctx context.Context, send sender) (err error) {
		state, err = m.save(ctx, send)
		return err
	})
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	if _, err := to.Write(frame(state)); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

func frame(state []byte) []byte {
	head := binary.LittleEndian.AppendUint64([]byte(stateMagic), uint64(len(state)))
	return append(head, state...)
}

func (m *Machine) save(ctx context.Context, send sender) (_ []byte, err error) {
	if !m.standing {
		now, err := m.state(ctx)
		if err != nil {
			return nil, err
		}
		if now != statePaused {
			return nil, fmt.Errorf("VM is %q, not paused: %w", now, errdefs.ErrFailedPrecondition)
		}
	}
	home, there := m.workPaths()
	if err := clearScratch(home); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clearScratch(home)) }()
	err = send(func(ctx context.Context) error { return m.api.snapshot(ctx, there) })
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(filepath.Join(home, ramFile)); err == nil {
		return nil, fmt.Errorf("RAM is in the state: its file is no shared one with a name: %w", errdefs.ErrInternal)
	}
	state, err := take(filepath.Join(home, stateFile))
	if err == nil && !json.Valid(state) {
		err = fmt.Errorf("%s is no JSON: %w", stateFile, errdefs.ErrDataLoss)
	}
	return state, err
}

// LoadState gives the VM, started as Incoming, its device state from the file's present
// offset on. It is paused afterwards.
func (m *Machine) LoadState(ctx context.Context, from *os.File) error {
	err := m.change(ctx, func(ctx context.Context, send sender) error { return m.load(ctx, from, send) })
	if err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	return nil
}

func (m *Machine) load(ctx context.Context, from *os.File, send sender) (err error) {
	if m.plan == nil || !m.plan.incoming {
		return fmt.Errorf("VM was not started as incoming: %w", errdefs.ErrFailedPrecondition)
	}
	state, err := readState(from)
	if err != nil {
		return fmt.Errorf("%s: %w", from.Name(), err)
	}
	if err := checkState(state, m.Process().Memory); err != nil {
		return fmt.Errorf("%s: %w", from.Name(), err)
	}
	vm, owners, fds := m.plan.restored()
	if err := m.api.fits(vm); err != nil {
		return err
	}
	config, err := json.Marshal(vm)
	if err != nil {
		return err
	}
	home, there := m.workPaths()
	if err := clearScratch(home); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clearScratch(home)) }()
	gate, state, err := m.gate(ctx, home, state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.close()) }()
	for name, data := range map[string][]byte{configFile: config, stateFile: state} {
		if err := writeInput(filepath.Join(home, name), data, m.plan.user); err != nil {
			return err
		}
	}
	err = send(func(ctx context.Context) error {
		return gate.during(ctx, func(ctx context.Context) error { return m.api.restore(ctx, there, owners, fds) })
	})
	if err != nil {
		return fmt.Errorf("%w%s", err, logTail(m.Process().Dir))
	}
	if err := m.publish(); err != nil {
		return err
	}
	if m.plan.template {
		err = m.plugInAll(send)
	}
	for _, t := range m.plan.taps {
		m.noteNIC(t.nic.ID, true)
	}
	err = errors.Join(err, m.made())
	if now, stateErr := m.state(ctx); stateErr != nil || now != statePaused {
		return errors.Join(err, fmt.Errorf("VM is %q after the restore, not paused: %w", now,
			errors.Join(stateErr, errdefs.ErrInternal)))
	}
	m.standing = err == nil
	return err
}

func readState(from *os.File) ([]byte, error) {
	head := make([]byte, len(stateMagic)+8)
	if _, err := io.ReadFull(from, head); err != nil || !bytes.HasPrefix(head, []byte(stateMagic)) {
		return nil, fmt.Errorf("no device state of Cloud Hypervisor: %w", errors.Join(errdefs.ErrInvalidArgument, err))
	}
	size := binary.LittleEndian.Uint64(head[len(stateMagic):])
	if size > maxState {
		return nil, fmt.Errorf("device state of %d bytes: %w", size, errdefs.ErrInvalidArgument)
	}
	state := make([]byte, size)
	if _, err := io.ReadFull(from, state); err != nil {
		return nil, fmt.Errorf("device state is cut: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	return state, nil
}
