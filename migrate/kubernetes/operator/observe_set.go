package operator

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// SetOf reads the set that a VM is a member of, by its owner or by its record; nil: there is none in its namespace.
func (v View) SetOf(ctx context.Context, vm *v1alpha1.VirtualMachine, rec *nodev1.Record) (*v1alpha1.VirtualMachineSet,
	error) {
	for _, name := range pods.SetNames(vm, rec) {
		set := &v1alpha1.VirtualMachineSet{}
		there, err := v.Get(ctx, types.NamespacedName{Namespace: vm.Namespace, Name: name}, set)
		if err != nil {
			return nil, err
		}
		member := pods.Listed(vm.Name, set)
		if there && (pods.Member(vm, set) != "" || member != "" && pods.HangsOn(set.UID, member, rec.GetUid())) {
			return set, nil
		}
	}
	return nil, nil
}

// SetFor reads the set that says whether a record is a VM's; nil: there is none, or the VM says so by itself.
func (v View) SetFor(ctx context.Context, vm *v1alpha1.VirtualMachine, rec *nodev1.Record) (*v1alpha1.VirtualMachineSet,
	error) {
	if vm == nil || rec == nil || pods.Claims(vm, rec.GetUid()) {
		return nil, nil
	}
	return v.SetOf(ctx, vm, rec)
}

// Has reports whether a record is a VM's.
func (v View) Has(ctx context.Context, vm *v1alpha1.VirtualMachine, rec *nodev1.Record) (bool, error) {
	set, err := v.SetFor(ctx, vm, rec)
	return err == nil && pods.Has(vm, set, rec), err
}

// ofSet observes the set that a VM is a member of, and where the main one of that is.
func (v View) ofSet(ctx context.Context, o *decide.VM) (err error) {
	vm := o.Object
	if o.Set, err = v.SetOf(ctx, vm, o.Record); err != nil || o.Set == nil {
		return err
	}
	main := decide.Main(o.Set)
	if name := pods.MemberVM(o.Set, main); name != vm.Name && pods.Member(vm, o.Set) != "" {
		rec, _, err := v.Record(ctx, vm.Namespace, name)
		if err != nil {
			return err
		}
		if pods.HangsOn(o.Set.UID, main, rec.GetUid()) {
			o.MainNode = rec.GetOwner().GetNode()
		}
	}
	return nil
}

// Set observes a VirtualMachineSet; false: there is none.
func (v View) Set(ctx context.Context, key types.NamespacedName) (decide.Set, bool, error) {
	o := decide.Set{Object: &v1alpha1.VirtualMachineSet{}, Engine: v.Engine, Records: map[string]*nodev1.Record{},
		Others: map[string]*v1alpha1.VirtualMachine{}, Lost: map[string]bool{}, Now: time.Now()}
	there, err := v.Get(ctx, key, o.Object)
	if err != nil || !there {
		return o, there, err
	}
	o.Unread = v.members(ctx, &o)
	return o, true, nil
}

func (v View) members(ctx context.Context, o *decide.Set) error {
	set := o.Object
	list := &v1alpha1.VirtualMachineList{}
	if err := v.List(ctx, list, client.InNamespace(set.Namespace), client.HasLabels{pods.LabelMember}); err != nil {
		return fmt.Errorf("list VMs of namespace %s: %w", set.Namespace, err)
	}
	for i := 0; v.Schemas != nil && i < len(list.Items); i++ {
		if err := v.whole(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	o.VMs = pods.Members(set, list.Items)
	var names []string
	for _, m := range set.Spec.Members {
		name := pods.MemberVM(set, m.Name)
		if o.VMs[m.Name] == nil { // also one whose label somebody has taken off
			vm := &v1alpha1.VirtualMachine{}
			there, err := v.Get(ctx, types.NamespacedName{Namespace: set.Namespace, Name: name}, vm)
			if err != nil {
				return err
			}
			switch {
			case there && pods.Member(vm, set) == m.Name:
				o.VMs[m.Name] = vm
			case there: // and its record, if it has one, is its own
				o.Others[m.Name] = vm
				continue
			}
		}
		rec, _, err := v.Record(ctx, set.Namespace, name)
		if err != nil {
			return err
		}
		if pods.Has(o.VMs[m.Name], set, rec) || pods.HangsOn(set.UID, m.Name, rec.GetUid()) {
			o.Records[m.Name] = rec
			if o.Lost[m.Name], err = v.lostAsleep(ctx, rec); err != nil {
				return err
			}
		}
		names = append(names, name)
	}
	var err error
	o.Orders, err = v.Orders(ctx, set.Namespace, names...)
	return err
}

// lostAsleep reports whether the node that has a VM in hand which sleeps is lost: it ends no operation.
func (v View) lostAsleep(ctx context.Context, rec *nodev1.Record) (bool, error) {
	if rec.GetOperation() == nil || rec.GetOwner().GetNode() != "" {
		return false, nil
	}
	return v.fenced(ctx, rec)
}
