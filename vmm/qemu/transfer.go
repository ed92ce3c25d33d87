package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm/process"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// stateFile names the pipe in QEMU.
const stateFile = "state"

// pollInterval is how often QEMU is asked when no event has told.
const pollInterval = 50 * time.Millisecond

// runWithEnd has QEMU run command on end, which is closed here.
func (m *Machine) runWithEnd(ctx context.Context, command string, end *os.File) error {
	err := m.qmp.SendFile(ctx, stateFile, end)
	if err = errors.Join(err, end.Close()); err != nil {
		return err
	}
	if err := m.qmp.Execute(ctx, command, map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		if ctx.Err() != nil { // who has not answered this would not answer more
			return err
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, m.closeFile(undo, stateFile))
	}
	return nil
}

// transfers hears how saves and loads end. It is made before the end can come.
func (m *Machine) transfers() *process.Waiter[qmp.Event] {
	return m.waiters.Expect(func(e qmp.Event) bool { return isFinal(migration(e)) })
}

// transferred returns when QEMU is through with a transfer under way.
func (m *Machine) transferred(ctx context.Context, told *process.Waiter[qmp.Event]) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case e := <-told.Got:
			if migration(e) == migrated { // a question would cost a moment in which the VM stands still
				return nil
			}
		case <-tick.C:
		case <-m.qmp.Done():
			return m.qmp.Err()
		case <-ctx.Done():
			return fmt.Errorf("QEMU is not through: %w", ctx.Err())
		}
		if over, err := m.askTransfer(ctx); over || err != nil {
			return err
		}
	}
}

// migrated is QEMU's word for a transfer that went well.
const migrated = "completed"

// isFinal reports whether a transfer has ended in this status.
func isFinal(status string) bool {
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

func (m *Machine) askTransfer(ctx context.Context) (bool, error) {
	var info struct {
		Status string          `json:"status"`
		Reason json.RawMessage `json:"error-desc"`
	}
	err := m.qmp.Execute(ctx, "query-migrate", nil, &info)
	if err != nil {
		return false, err
	}
	if isFinal(info.Status) && info.Status != migrated {
		err = fmt.Errorf("QEMU says %s: %s: %w", info.Status, info.Reason, errdefs.ErrFailedPrecondition)
	}
	return isFinal(info.Status), err
}

// closeFile drops what SendFile gave; QEMU has already if a command took it.
func (m *Machine) closeFile(ctx context.Context, name string) error {
	err := m.execute(ctx, "closefd", map[string]any{"fdname": name}, nil)
	if refused := (*qmp.Error)(nil); errors.As(err, &refused) {
		return nil
	}
	return err
}
