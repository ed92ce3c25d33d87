package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
)

// maxState bounds device state, which is below 1 MiB; RAM in it would be a fault.
const maxState = 64 << 20

// usualState is more than most states have, half a MiB: a buffer that grows is copied while the
// VM stands still.
const usualState = 1 << 20

// prepare sets what every save and load needs: RAM, a shared file, stays out of the state, and
// QEMU tells when it is through. After a load QEMU has the guest announce its NICs once, not
// five times: the daemon that has the network does that. Not at all would be better, but with 0
// rounds QEMU 7.2 frees a timer in virtio_net_post_load that virtio_net_reset stops. It then
// dies when the guest lets go of the NIC, or is reset.
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
	return m.execute(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40, "announce-rounds": 1},
		nil)
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
	status, err := m.settledStatus(ctx)
	switch {
	case err != nil:
		return nil, err
	case status == "running" || status == "inmigrate":
		return nil, fmt.Errorf("VM is %s, not paused: %w", status, errdefs.ErrFailedPrecondition)
	case status == "postmigrate" && m.lastState() != nil:
		// QEMU saves once per pause. Nothing has run since: it would be the same again.
		return m.lastState(), nil
	}
	ctx, cancel = withGrace(ctx)
	defer cancel()
	// A pipe, not the file: newer versions refuse a plain file for fd:.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	state := bytes.NewBuffer(make([]byte, 0, usualState))
	copied := make(chan error, 1)
	go func() {
		n, err := io.Copy(state, io.LimitReader(r, maxState))
		if n == maxState {
			err = fmt.Errorf("more than %d bytes: %w", maxState, errdefs.ErrOutOfRange)
		}
		copied <- errors.Join(err, r.Close())
	}()
	told := m.transfers()
	defer told.Close()
	if err = m.runWithEnd(ctx, "migrate", w); err == nil {
		err = m.transferred(ctx, told)
	}
	if err != nil {
		r.SetReadDeadline(time.Now()) // QEMU may hold its end for ever
	}
	if err = errors.Join(err, <-copied); err != nil {
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

// statusSaving is QEMU's word for a VM whose state is being saved.
const statusSaving = "finish-migrate"

// settledStatus is the status of a VM, once a save that was given up, or whose shim died, is over.
func (m *Machine) settledStatus(ctx context.Context) (string, error) {
	status, err := m.status(ctx)
	if err != nil || status != statusSaving {
		return status, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := m.awaitStatusChange(ctx, statusSaving); err != nil {
		return "", err
	}
	return m.status(ctx)
}

// settleInterval is between two looks: the VM stands still meanwhile.
const settleInterval = time.Millisecond

// awaitStatusChange waits until the VM has left a passing status: QEMU says completed a moment
// before it has done so.
func (m *Machine) awaitStatusChange(ctx context.Context, passing string) error {
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
