//go:build integration

package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// runAgain: what a run has left can be removed, and a VM of its name made.
func (w *verbWorld) runAgain(ctx context.Context) error {
	if err := w.removeAgain(ctx); err != nil {
		return err
	}
	if err := w.godwit(ctx, runArgs...); err != nil {
		return err
	}
	return errors.Join(w.inside(ctx, "runs", "echo runs"), w.removeAgain(ctx))
}

func (w *verbWorld) stopAgain(ctx context.Context) error {
	if err := w.repeat(ctx, "", "stop", verbVM); err != nil {
		return err
	}
	if vm, err := w.seen(ctx); err != nil || vm == nil || vm.Status == "running" {
		return fmt.Errorf("after stop ps says %+v, %v", vm, err)
	}
	return w.startAgain(ctx)
}

// taskless is what a start says of a VM whose shim died in an operation: it runs, and containerd gets a task of it when
// it wakes again (ADR 28).
const taskless = "without a task of containerd"

// startAgain: the VM runs, and has its disk.
func (w *verbWorld) startAgain(ctx context.Context) error {
	lacks := false
	err := harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		err := w.godwit(ctx, "start", verbVM)
		run, ok := errors.AsType[*harness.RunError](err)
		if lacks = ok && strings.Contains(run.Stderr, taskless); lacks {
			return nil
		}
		if ok && strings.Contains(run.Stderr, "is running already") {
			return nil
		}
		return err
	})
	if err == nil && lacks {
		err = errors.Join(w.repeat(ctx, "", "hibernate", verbVM), w.repeat(ctx, "", "wake", verbVM))
	}
	if err != nil {
		return err
	}
	return w.inside(ctx, "mark", "cat /mark")
}

func (w *verbWorld) restartAgain(ctx context.Context) error {
	if err := w.repeat(ctx, "", "restart", verbVM); err != nil {
		return err
	}
	return w.inside(ctx, "mark", "cat /mark")
}

// renameAgain: the VM has the one name or the other, and can be given both.
func (w *verbWorld) renameAgain(ctx context.Context) error {
	vm, err := w.seen(ctx)
	if err != nil || vm == nil || vm.Name != verbVM && vm.Name != "renamed" {
		return fmt.Errorf("ps says %+v, %v", vm, err)
	}
	for _, name := range []string{"renamed", verbVM} {
		if err := w.repeat(ctx, "", "rename", verbVM, name); err != nil {
			return err
		}
		if vm, err = w.seen(ctx); err != nil || vm == nil || vm.Name != name {
			return fmt.Errorf("after the rename to %s ps says %+v, %v", name, vm, err)
		}
	}
	return w.startAgain(ctx)
}

// snapshotSeen is what godwit snapshot ls says of one.
type snapshotSeen struct {
	Digest, Name string
	Pinned       bool
}

func (w *verbWorld) snapshots(ctx context.Context) ([]snapshotSeen, error) {
	out, err := w.ask(ctx, "snapshot", "ls", "-o", "json", verbVM)
	if err != nil {
		return nil, err
	}
	var list struct{ Snapshots []snapshotSeen }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read the list of snapshots: %w: %s", err, out)
	}
	return list.Snapshots, nil
}

// checkpointAgain: one snapshot has the name, and each that is listed is whole.
func (w *verbWorld) checkpointAgain(ctx context.Context) error {
	if err := w.startAgain(ctx); err != nil {
		return err
	}
	if err := w.repeat(ctx, "a snapshot of the name", "checkpoint", "--name", "kept", verbVM); err != nil {
		return err
	}
	all, err := w.snapshots(ctx)
	if err != nil {
		return err
	}
	named := 0
	for _, s := range all {
		if s.Name == "kept" {
			named++
		}
		if err := w.godwit(ctx, "snapshot", "verify", s.Digest); err != nil {
			return fmt.Errorf("a snapshot is listed that is not whole: %w", err)
		}
	}
	if named != 1 {
		return fmt.Errorf("%d snapshots have the name: %+v", named, all)
	}
	return w.repeat(ctx, "", "snapshot", "rm", "kept")
}

// pinAgain: name and pin come together, or not at all.
func (w *verbWorld) pinAgain(ctx context.Context) error {
	pinned := func() (bool, error) {
		all, err := w.snapshots(ctx)
		i := slices.IndexFunc(all, func(s snapshotSeen) bool { return s.Digest == w.digest })
		if err != nil || i < 0 || all[i].Pinned != (all[i].Name == "pinned") {
			return false, fmt.Errorf("the list has %+v, %v", all, err)
		}
		return all[i].Pinned, nil
	}
	if _, err := pinned(); err != nil {
		return err
	}
	if err := w.repeat(ctx, "", "snapshot", "pin", "--name", "pinned", w.digest); err != nil {
		return err
	}
	if is, err := pinned(); !is || err != nil {
		return fmt.Errorf("it is not pinned: %v", err)
	}
	return errors.Join(w.repeat(ctx, "", "snapshot", "pin", "--name", "", w.digest),
		w.repeat(ctx, "", "snapshot", "unpin", w.digest), w.startAgain(ctx))
}

// copyAgain: the file is the old one or the new one, and then the new one, and no other is left.
func (w *verbWorld) copyAgain(ctx context.Context) error {
	if err := w.startAgain(ctx); err != nil {
		return err
	}
	is := fmt.Sprintf("%d", len(w.content))
	out, err := w.ask(ctx, "exec", verbVM, "sh", "-c", "wc -c </data")
	if size := strings.TrimSpace(out); err != nil || size != "4" && size != is {
		return fmt.Errorf("the file has %q bytes, %v", size, err)
	}
	if err := w.repeat(ctx, "", "cp", w.next, verbVM+":/data"); err != nil {
		return err
	}
	if err := w.inside(ctx, is, "ls -d /.godwit-* 2>/dev/null; wc -c </data"); err != nil {
		return err
	}
	return w.inside(ctx, "", "echo old >/data; sync")
}

// committedImage is the image that a commit makes.
const committedImage = "godwit.test/committed:1"

// commitAgain: an image that is there is whole, also where the verb died, and the VM goes on.
func (w *verbWorld) commitAgain(ctx context.Context) error {
	if err := w.startAgain(ctx); err != nil {
		return err
	}
	out, err := w.ask(ctx, "images", "-q")
	if err != nil {
		return err
	}
	there := strings.Contains(out, committedImage)
	if !there {
		err = w.repeat(ctx, "", "commit", verbVM, committedImage)
	}
	if err != nil {
		return err
	}
	out, err = w.n.RunCtr(ctx, "images", "check", "name=="+committedImage)
	if err != nil || !strings.Contains(out, "complete") {
		return fmt.Errorf("of an image that was there (%v) containerd says %q, %v", there, out, err)
	}
	_, err = w.n.RunCtr(ctx, "images", "rm", "--sync", committedImage)
	return err
}

// removeAgain: nothing of the VM is left.
func (w *verbWorld) removeAgain(ctx context.Context) error {
	if err := w.repeat(ctx, "here is no VM", "rm", "-f", verbVM); err != nil {
		return err
	}
	return harness.Poll(ctx, 2*settleBound, func(ctx context.Context) error {
		if vm, err := w.seen(ctx); vm != nil || err != nil {
			return fmt.Errorf("ps says %+v, %v", vm, err)
		}
		now, err := w.n.Inventory(ctx)
		if err != nil {
			return err
		}
		more := now.Since(w.empty)
		kept, _ := filepath.Glob(filepath.Join(w.n.StateDir(), "*", "default", verbVM))
		if more = append(more, kept...); len(more) > 0 {
			return fmt.Errorf("the node still holds:\n  %s", strings.Join(more, "\n  "))
		}
		list, err := w.n.RunCtr(ctx, "containers", "ls", "-q")
		if err == nil && strings.TrimSpace(list) != "" {
			err = fmt.Errorf("a container is left: %s", list)
		}
		return err
	})
}
