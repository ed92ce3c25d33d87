//go:build integration

package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
)

// checkpoints are the points of a checkpoint. Before the pause a shim that dies is succeeded. After it the VM needs
// nothing but the shim and the VMM any more.
func checkpoints() []scene {
	before := map[victim]outcome{shimProcess: runs, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs,
		controller: runs}
	behind := map[victim]outcome{shimProcess: lost, vmmProcess: lost, worker: runs, daemon: runs, containerds: runs,
		controller: runs}
	return []scene{
		{"checkpoint", "before the pause", (*operationRun).precopying, before},
		{"checkpoint", "after the pause", (*operationRun).sending, behind},
		{"checkpoint", "manifest held", (*operationRun).naming, behind},
		{"checkpoint", "manifest written", (*operationRun).pushed, behind},
	}
}

// TestCrashCheckpoint kills at the points of a checkpoint: the VM goes on, but where its own
// processes die, and no snapshot is listed that is not whole.
func TestCrashCheckpoint(t *testing.T) {
	playAll(t, newWorld, checkpoints(), []string{
		"checkpoint/before the pause/shim", "checkpoint/after the pause/worker", "checkpoint/manifest written/godwitd",
	})
}

// sending: what was read in the pause goes to the registry while the VM runs on.
func (a *operationRun) sending(ctx context.Context) error {
	a.flags = []string{"--pause-budget", "0"}
	if _, err := a.heldAt(ctx, carries); err != nil {
		return err
	}
	return a.journaled(ctx, "OWN")
}

// whole reads every snapshot that the VM's record lists.
func (w *world) whole(ctx context.Context) error {
	out, err := w.a.RunGodwit(ctx, "snapshot", "ls", "-o", "json", w.vm)
	if err != nil {
		return err
	}
	var list struct{ Snapshots []struct{ Digest string } }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read the list of snapshots: %w: %s", err, out)
	}
	for _, s := range list.Snapshots {
		if err := w.godwit(ctx, "snapshot", "verify", s.Digest); err != nil {
			return fmt.Errorf("a snapshot is listed that is not whole: %w", err)
		}
	}
	return nil
}
