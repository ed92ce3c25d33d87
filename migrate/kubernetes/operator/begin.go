package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// held are the snapshots of a record that stay when it is removed: each VMSnapshot of its namespace may have one. The
// record was read before, and is removed as it was read: what it lists was ordered before this look.
func (b base) held(ctx context.Context, rec *nodev1.Record) (operations []string, err error) {
	of := map[string]bool{rec.GetOperation().GetId(): rec.GetOperation() != nil}
	for _, ref := range rec.GetSnapshots() {
		of[ref.GetOperation()] = true
	}
	if len(rec.GetSnapshots()) == 0 && rec.GetOperation() == nil || pods.OfSandbox(rec) { // which has no VMSnapshot
		return nil, nil
	}
	namespace, _ := pods.Split(rec)
	list := &metav1.PartialObjectMetadataList{} // there may be many, and their uids are enough
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("VMSnapshotList"))
	if err := b.current.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list snapshots of namespace %s: %w", namespace, err)
	}
	for i := range list.Items {
		if uid := string(list.Items[i].UID); of[uid] {
			operations = append(operations, uid)
		}
	}
	return operations, nil
}

// remove ends a record. The snapshots that it lists are owed from then on, but for those that have a VMSnapshot.
func (b base) remove(ctx context.Context, rec *nodev1.Record) error {
	hold, err := b.held(ctx, rec)
	if err != nil {
		return err
	}
	_, err = b.records.service.Remove(ctx, &nodev1.RemoveRequest{Vm: rec.GetVm(), Uid: rec.GetUid(), Force: true,
		DropSnapshots: true, Hold: hold, Version: rec.GetVersion()})
	return err
}

// take has a VM begin from a snapshot that is held, and no other one.
func (r records) take(ctx context.Context, rec *nodev1.Record, seen *nodev1.Owed) error {
	_, err := r.store.ChangeHeld(ctx, seen.GetVm(), seen.GetSnapshot().GetOperation(),
		func(held *nodev1.Owed) (*nodev1.Owed, error) {
			return transition.Take(held, seen.GetHold(), transition.MarkOf(rec))
		})
	return err
}

// release ends that a snapshot stays. It is deleted, unless it is to be kept in its registry.
func (r records) release(ctx context.Context, seen *nodev1.Owed, keep bool) error {
	_, err := r.store.ChangeHeld(ctx, seen.GetVm(), seen.GetSnapshot().GetOperation(),
		func(held *nodev1.Owed) (*nodev1.Owed, error) {
			return transition.Release(held, seen.GetHold(), keep, time.Now())
		})
	return err
}

// begin has the snapshot own the VM. How the VM ran that it was taken of is written down for this one first: a wake has
// the images of the snapshot, and the address where the VM keeps it.
func (b base) begin(ctx context.Context, rec *nodev1.Record, held *nodev1.Owed, images map[string]string) error {
	if err := b.inheritRun(ctx, rec, held, images); err != nil {
		return err
	}
	_, err := b.records.service.Begin(ctx, rec.GetVm(), held)
	return err
}

// inheritRun has images that the snapshot says, and never those that its VM, or another one of its name, had last. If
// it says none, a wake takes those of the template.
func (b base) inheritRun(ctx context.Context, rec *nodev1.Record, held *nodev1.Owed, images map[string]string) error {
	noted := ran{}
	for _, from := range []*nodev1.Record{{Vm: held.GetVm(), Uid: held.GetUid()}, rec} { // rec: it was written already
		o := &v1alpha1.VMRecord{}
		there, err := b.current.Get(ctx, client.ObjectKey{Name: from.GetVm().GetId()}, o)
		if err == nil && there && noted.UID == "" {
			noted, err = hasRan(o, from)
		}
		if err != nil {
			return err
		}
	}
	noted.UID, noted.Images = rec.GetUid(), images
	text, err := json.Marshal(noted)
	if err != nil {
		return fmt.Errorf("encode how a VM ran: %w", err)
	}
	return b.annotateRan(ctx, rec, string(text))
}
