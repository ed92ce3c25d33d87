package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/qemu/qmp"
)

// stateFile names the pipe in QEMU.
const stateFile = "state"

const (
	stateMagic = "QEVM"
	maxState   = 64 << 20 // device state is below 1 MiB; RAM in it would be a fault
)

// pollInterval is how often QEMU is asked when no event has told.
const pollInterval = 50 * time.Millisecond

// prepare sets what every save and load needs: RAM, a shared file, stays out of the
// state, and QEMU tells when it is through.
func (m *Machine) prepare(ctx context.Context) error {
	err := m.execute(ctx, "migrate-set-capabilities", map[string]any{
		"capabilities": []map[string]any{
			{"capability": "x-ignore-shared", "state": true},
			{"capability": "events", "state": true},
		},
	}, nil)
	if err != nil {
		return err
	}
	return m.execute(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}, nil)
}

// SaveState writes the device state at the file's present offset. The VM must be paused;
// it can be saved again, and resumed, afterwards. What has begun is brought to its end if ctx ends
// in its midst: QEMU lets no vCPU run before.
func (m *Machine) SaveState(ctx context.Context, to *os.File) error {
	state, err := m.state(ctx)
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	if _, err := to.Write(state); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

func (m *Machine) state(ctx context.Context) ([]byte, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	status, err := m.status(ctx)
	switch {
	case err != nil:
		return nil, err
	case status == "running" || status == "inmigrate":
		return nil, fmt.Errorf("VM is %s, not paused: %w", status, errdefs.ErrFailedPrecondition)
	case status == "postmigrate" && m.lastState() != nil:
		// QEMU saves once per pause. Nothing has run since: it would be the same again.
		return m.lastState(), nil
	}
	ctx, cancel = outlast(ctx)
	defer cancel()
	// A pipe, not the file: newer versions refuse a plain file for fd:.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var state bytes.Buffer
	copied := make(chan error, 1)
	go func() {
		n, err := io.Copy(&state, io.LimitReader(r, maxState))
		if n == maxState {
			err = fmt.Errorf("more than %d bytes: %w", maxState, errdefs.ErrOutOfRange)
		}
		copied <- errors.Join(err, r.Close())
	}()
	err = m.transfer(ctx, "migrate", w)
	if err != nil {
		r.SetReadDeadline(time.Now()) // QEMU may hold its end for ever
	}
	if err = errors.Join(err, <-copied); err != nil {
		return nil, err
	}
	if err := m.settle(ctx, statusSaving); err != nil {
		return nil, err
	}
	m.setState(state.Bytes())
	return state.Bytes(), nil
}

func (m *Machine) lastState() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved
}

// setState remembers the state of this pause; nil forgets it.
func (m *Machine) setState(state []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = state
}

// LoadState gives the VM, started as Incoming, its device state from the file's present
// offset on. It is paused afterwards.
func (m *Machine) LoadState(ctx context.Context, from *os.File) error {
	if err := m.loadState(ctx, from); err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	return nil
}

func (m *Machine) loadState(ctx context.Context, from *os.File) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if status, err := m.status(ctx); err != nil {
		return err
	} else if status != "inmigrate" {
		return fmt.Errorf("VM is %s, it was not started as incoming: %w", status, errdefs.ErrFailedPrecondition)
	}
	// QEMU waits for ever for the first byte of an empty file.
	magic := make([]byte, len(stateMagic))
	if _, err := io.ReadFull(from, magic); err != nil || string(magic) != stateMagic {
		return fmt.Errorf("%s holds no device state of QEMU: %w", from.Name(), errors.Join(errdefs.ErrInvalidArgument, err))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, io.MultiReader(bytes.NewReader(magic), from))
		copied <- errors.Join(err, w.Close())
	}()
	err = m.transfer(ctx, "migrate-incoming", r)
	w.SetWriteDeadline(time.Now()) // QEMU does not read what follows the state's end
	if copyErr := <-copied; err != nil {
		return fmt.Errorf("%w%s", errors.Join(err, copyErr), logTail(m.Process().Dir))
	}
	return m.settle(ctx, "inmigrate")
}

// transfer runs command on end, which is closed here, until QEMU is through with it.
func (m *Machine) transfer(ctx context.Context, command string, end *os.File) error {
	w := m.waiters.Expect(func(e qmp.Event) bool { return over(migration(e)) })
	defer w.Close()
	err := m.qmp.SendFile(ctx, stateFile, end)
	if err = errors.Join(err, end.Close()); err != nil {
		return err
	}
	if err := m.qmp.Execute(ctx, command, map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, m.closeFile(undo, stateFile))
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case e := <-w.Got:
			if migration(e) == migrated { // a question would cost a moment in which the VM stands still
				return nil
			}
		case <-tick.C:
		case <-m.qmp.Done():
			return m.qmp.Err()
		case <-ctx.Done():
			return fmt.Errorf("QEMU is not through: %w", ctx.Err())
		}
		if over, err := m.transferred(ctx); over || err != nil {
			return err
		}
	}
}

// migrated is QEMU's word for a transfer that went well.
const migrated = "completed"

// over reports whether a transfer has ended in this status.
func over(status string) bool {
	return status == migrated || status == "failed" || status == "cancelled"
}

// migration is the status that an event tells of a transfer; empty: it is another event.
func migration(e qmp.Event) string {
	var data struct {
		Status string `json:"status"`
	}
	if e.Name != "MIGRATION" || json.Unmarshal(e.Data, &data) != nil {
		return ""
	}
	return data.Status
}

func (m *Machine) transferred(ctx context.Context) (bool, error) {
	var info struct {
		Status string          `json:"status"`
		Reason json.RawMessage `json:"error-desc"`
	}
	err := m.qmp.Execute(ctx, "query-migrate", nil, &info)
	if err != nil {
		return false, err
	}
	if over(info.Status) && info.Status != migrated {
		err = fmt.Errorf("QEMU says %s: %s: %w", info.Status, info.Reason, errdefs.ErrFailedPrecondition)
	}
	return over(info.Status), err
}

// statusSaving is QEMU's word for a VM whose state is being saved.
const statusSaving = "finish-migrate"

// standing is the status of a VM, once a save that was given up, or whose shim died, is over.
func (m *Machine) standing(ctx context.Context) (string, error) {
	status, err := m.status(ctx)
	if err != nil || status != statusSaving {
		return status, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := m.settle(ctx, statusSaving); err != nil {
		return "", err
	}
	return m.status(ctx)
}

// settleInterval is between two looks: the VM stands still meanwhile.
const settleInterval = time.Millisecond

// settle waits until the VM has left a passing status: QEMU says completed a moment
// before it has done so.
func (m *Machine) settle(ctx context.Context, passing string) error {
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	for {
		if status, err := m.status(ctx); err != nil || status != passing {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("VM stays %s: %w", passing, ctx.Err())
		}
	}
}

// closeFile drops what SendFile gave; QEMU has already if a command took it.
func (m *Machine) closeFile(ctx context.Context, name string) error {
	err := m.execute(ctx, "closefd", map[string]any{"fdname": name}, nil)
	if refused := (*qmp.Error)(nil); errors.As(err, &refused) {
		return nil
	}
	return err
}
