package operator

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"

	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/schema"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Told is what the workload of a VM is told: that a snapshot of it is Ready.
type Told struct {
	Record    *nodev1.Record // as it was when that was decided
	Name      string         // of the VMSnapshot
	Operation string         // that made the snapshot
	Digest    string
}

// tell is a controller of its own, with workers of its own: a guest or a node that hangs keeps no other work waiting.
// It decides as reconcile does.
func (r snapshots) tell(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var o decide.Snapshot
	var next decide.Action
	for _, view := range []View{r.cached, r.current} {
		there, err := false, error(nil)
		if o, there, err = view.Snapshot(ctx, req.NamespacedName); err != nil || !there {
			return ctrl.Result{}, err
		}
		if next = decide.NextSnapshot(o); next.Do != decide.TellWorkload {
			return ctrl.Result{}, o.Unread
		}
	}
	if wait, outdated := r.outdated(ctx, ofSnapshots, ofContents, ofVMs); outdated {
		return wait, nil
	}
	return r.tellWorkload(ctx, o, next)
}

// tellWorkload tells the workload, and says so in the status. A try that failed is made again, and so is one whose word
// in the status was lost: the workload sees the same file. A failure is no error of the controller, which would try
// again at once.
func (r snapshots) tellWorkload(ctx context.Context, o decide.Snapshot, next decide.Action) (ctrl.Result, error) {
	snap, after := o.Object, decide.Action{}
	failed := r.engine.Tell(ctx, Told{Record: o.Record, Name: snap.Name, Operation: string(snap.UID), Digest: next.Digest})
	if failed != nil {
		after.After = decide.TellAgain
	}
	said := snap.DeepCopy()
	said.Status = decide.ToldStatus(o, failed)
	if equality.Semantic.DeepEqual(said.Status, snap.Status) {
		return result(after, nil)
	}
	if err := r.client.Status().Update(ctx, said, schema.Strict); err != nil {
		return result(after, ignoreAbsent(err))
	}
	if failed != nil {
		r.events.Eventf(snap, nil, corev1.EventTypeWarning, eventTellFailed, "Tell", "%s", failed.Error())
	}
	return result(after, nil)
}
