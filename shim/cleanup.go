package shim

import (
	"context"

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
	if j.Phase.Open() {
		return j.Holder.PID, nil
	}
	return j.Holder.PID, Reclaim(ctx, host, dir, j)
}
