package shim

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/shim/bundle"
)

// CleanUp frees what a VM has whose shim is gone, and answers the pid that its task
// showed. While an operation holds or wakes the VM it touches nothing: the VM lives on,
// and whoever adopts it obeys the record. The hooks that wait for the end of the container
// run, unless the shim had come so far.
func CleanUp(ctx context.Context, host *Host, dir string) (pid int, err error) {
	j, err := LoadJournal(dir)
	if errdefs.IsNotFound(err) {
		return 0, sweep(dir)
	}
	if err != nil {
		return 0, err
	}
	if j.Phase.Open() || j.Adopted || j.wakes() && host.Records != nil { // without a daemon nobody adopts
		return j.Holder.PID, nil
	}
	if err := Reclaim(ctx, host, dir, j); err != nil {
		return j.Holder.PID, err
	}
	poststop(ctx, j)
	if j.Phase != Own || host.Records == nil {
		return j.Holder.PID, nil
	}
	// The VM is gone; the node gives it up if its daemon answers at once. If not, it
	// stays the owner, and may boot it again.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	vm := &VM{namespace: j.Spec.Namespace, id: j.Spec.ID, host: host}
	_ = vm.disown(ctx, j.Generation, j.Spec.UID)
	return j.Holder.PID, nil
}

// sweep removes the directory of a VM that has no journal: its shim died before the first
// word of it, or whoever freed it behind the last. Nothing else is there.
func sweep(dir string) error {
	unlock, err := lockDir(filepath.Dir(dir))
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := LoadJournal(dir); !errdefs.IsNotFound(err) {
		return err
	}
	return os.RemoveAll(dir)
}

// poststop runs the hooks of a bundle whose shim cannot. A failure is told: nothing can
// be taken back.
func poststop(ctx context.Context, j *Journal) {
	if j.Spec == nil { // a fence, whose task is long gone
		return
	}
	hooks, annotations, err := bundle.HooksOf(j.Bundle)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = hooks.Run(ctx, bundle.Poststop, specs.State{
			Version: specs.Version, ID: j.Spec.ID, Status: specs.StateStopped, Bundle: j.Bundle, Annotations: annotations,
		})
	}
	if err != nil {
		slog.Warn("run hooks", "vm", j.Spec.Namespace+"/"+j.Spec.ID, "error", err)
	}
}
