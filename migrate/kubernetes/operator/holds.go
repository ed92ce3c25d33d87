package operator

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// endHolds forgets what is held in a record and that no VMSnapshot has. So it is with one that was deleted while the VM
// ended, or whose finalizer was taken away. The snapshot itself stays in its registry: that no object names it does not
// say that it is to be deleted. The rest of a VM is no snapshot: it goes with the last one.
func (b base) endHolds(ctx context.Context, cached *v1alpha1.VMRecord, owed []*nodev1.Owed) error {
	owed = slices.DeleteFunc(slices.Clone(owed), func(o *nodev1.Owed) bool {
		return o.GetHold() == nil || record.IsRest(o.GetSnapshot().GetDigest())
	})
	if pods.IsSandboxRecord(cached.Name) {
		return nil
	}
	namespace, vm := pods.Split(&nodev1.Record{Vm: &nodev1.VM{Namespace: cached.Spec.VM.Namespace, Id: cached.Spec.VM.ID}})
	for _, from := range []client.Reader{b.client, b.current.Reader} { // the cache may say that it is there, and no more
		if len(owed) == 0 {
			return nil
		}
		list := &v1alpha1.VMSnapshotList{}
		if err := from.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list snapshots of namespace %s: %w", namespace, err)
		}
		there := map[string]bool{}
		for i := range list.Items {
			there[string(list.Items[i].UID)] = true
		}
		owed = slices.DeleteFunc(owed, func(o *nodev1.Owed) bool { return there[o.GetSnapshot().GetOperation()] })
	}
	for _, o := range owed {
		if err := b.endHold(ctx, cached, o, namespace, vm); err != nil {
			return fmt.Errorf("look for the VMSnapshot of %s: %w", o.GetSnapshot().GetDigest(), err)
		}
	}
	return nil
}

// endHold forgets one that no VMSnapshot has.
func (b base) endHold(ctx context.Context, cached *v1alpha1.VMRecord, owed *nodev1.Owed, namespace, vm string) error {
	uid := types.UID(owed.GetSnapshot().GetOperation())
	o := decide.Snapshot{Object: &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, UID: uid}}}
	if err := b.current.holds(ctx, &o, vm); err != nil || !o.Orphaned() {
		return err
	}
	if err := b.records.release(ctx, o.Held, true); err != nil {
		return err
	}
	b.events.Eventf(cached, nil, corev1.EventTypeWarning, "SnapshotForgotten", "Forget", "no VMSnapshot has the snapshot "+
		"%s any more: it is forgotten, and stays in %s", owed.GetSnapshot().GetDigest(), owed.GetSnapshot().GetRepository())
	return nil
}
