package shim

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
)

// CleanUp frees what a VM has whose shim is gone, and answers the pid that its task
// showed. While an operation holds the VM it touches nothing: the VM lives on, and
// whoever adopts it obeys the record.
func CleanUp(ctx context.Context, host *Host, dir string) (pid int, err error) {
	j, err := LoadJournal(dir)
	if errdefs.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if j.Phase.Open() || j.Adopted {
		return j.Holder.PID, nil
	}
	if err := Reclaim(ctx, host, dir, j); err != nil || j.Phase != Own || host.Records == nil {
		return j.Holder.PID, err
	}
	// The VM is gone; the node gives it up if its daemon answers at once. If not, it
	// stays the owner, and may boot it again.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	vm := &VM{namespace: j.Spec.Namespace, id: j.Spec.ID, host: host}
	_ = vm.disown(ctx, j.Generation, j.Spec.UID)
	return j.Holder.PID, nil
}
