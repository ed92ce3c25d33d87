package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// memberEnd observes who could have a record. A set that is there has made each VM that it makes before it goes.
func (v View) memberEnd(ctx context.Context, rec *nodev1.Record) (o decide.MemberEnd, err error) {
	namespace, name := pods.Split(rec)
	o.Record = rec
	sets := &v1alpha1.VirtualMachineSetList{}
	if err := v.List(ctx, sets, client.InNamespace(namespace)); err != nil {
		return o, fmt.Errorf("list sets of namespace %s: %w", namespace, err)
	}
	o.Sets = sets.Items
	vm := &v1alpha1.VirtualMachine{}
	there, err := v.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, vm)
	if there {
		o.VM = vm
	}
	return o, err
}

// endMember ends the record of a member of a set that no object can have any more. A VM that is deleted before its set
// leaves its record to the next object of the member, and there may be no next one. rec is what the cached object says.
func (b base) endMember(ctx context.Context, cached *v1alpha1.VMRecord, rec *nodev1.Record) error {
	if rec == nil || !decide.OfMember(rec) {
		return nil
	}
	end, err := b.cached.memberEnd(ctx, rec)
	if err != nil || decide.NextMemberEnd(end).Do == decide.None {
		return nil
	}
	o := &v1alpha1.VMRecord{}
	there, err := b.current.Get(ctx, client.ObjectKeyFromObject(cached), o)
	if err != nil || !there {
		return err
	}
	if rec, _, err = store.Record(o); err != nil || rec == nil {
		return err
	}
	end, err = b.current.memberEnd(ctx, rec)
	if _, outdated := b.outdated(ctx, ofSets, ofVMs); outdated {
		return nil
	}
	if err != nil || decide.NextMemberEnd(end).Do != decide.RemoveRecord {
		return err
	}
	if err := b.remove(ctx, rec); err != nil {
		return err
	}
	b.events.Eventf(cached, nil, corev1.EventTypeNormal, "MemberGone", "Remove",
		"the VM and its VirtualMachineSet are gone: the record ends, and its snapshots are deleted")
	return nil
}
