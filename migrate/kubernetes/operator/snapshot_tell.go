package operator

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Told is what the workload of a VM is told: that a snapshot of it is Ready.
type Told struct {
	Record    *nodev1.Record // as it was when that was decided
	Name      string         // of the VMSnapshot
	Operation string         // that made the snapshot
	Digest    string
}

// tellWorkload tells the workload, and says so in the status. A try that failed is made again, and so is one whose word
// in the status was lost: the workload sees the same file.
func (r snapshots) tellWorkload(ctx context.Context, o decide.Snapshot, next decide.Action) error {
	snap := o.Object
	failed := r.engine.Tell(ctx, Told{Record: o.Record, Name: snap.Name, Operation: string(snap.UID), Digest: next.Digest})
	said := snap.DeepCopy()
	said.Status = decide.ToldStatus(o, failed)
	if equality.Semantic.DeepEqual(said.Status, snap.Status) {
		return failed
	}
	if err := r.client.Status().Update(ctx, said); err != nil {
		return errors.Join(failed, ignoreAbsent(err))
	}
	if failed != nil {
		r.events.Eventf(snap, nil, corev1.EventTypeWarning, eventTellFailed, "Tell", "%s", failed.Error())
	}
	return failed
}
