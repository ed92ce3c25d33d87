package decide_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The record of a member that sleeps ends once no object can have it: neither a VM nor a set. What is there, or may be
// there, ends nothing.
func TestMemberEnd(t *testing.T) {
	later := func(by time.Duration) metav1.Time { return metav1.NewTime(now.Add(by)) }
	another := func() *v1alpha1.VirtualMachineSet {
		s := set()
		s.UID, s.CreationTimestamp = "s2", later(0)
		return s
	}
	vm := func(of *v1alpha1.VirtualMachineSet, change func(*v1alpha1.VirtualMachine)) func(*decide.MemberEnd) {
		return func(o *decide.MemberEnd) {
			w := world(worker(of))
			o.VM, o.Sets = w.Object, []v1alpha1.VirtualMachineSet{*of}
			o.VM.CreationTimestamp = later(time.Second)
			change(o.VM)
		}
	}
	ends := func(change func(*decide.MemberEnd)) func(*decide.MemberEnd) {
		return func(o *decide.MemberEnd) { o.Sets = nil; change(o) }
	}
	for name, test := range map[string]struct {
		change func(*decide.MemberEnd)
		ends   bool
	}{
		"VM and set are gone":      {ends(func(*decide.MemberEnd) {}), true},
		"it has ended":             {ends(func(o *decide.MemberEnd) { o.Record.Owner = nil }), true},
		"the set is there":         {func(*decide.MemberEnd) {}, false},
		"the set is being deleted": {func(o *decide.MemberEnd) { o.Sets[0].DeletionTimestamp = &metav1.Time{} }, false},
		"the set names the member no more": {func(o *decide.MemberEnd) {
			o.Sets[0].Spec.Members = o.Sets[0].Spec.Members[:1]
		}, true},
		"the set is there, and this is a later life": {func(o *decide.MemberEnd) {
			o.Record.Uid = pods.MemberUIDs("s1", "worker")[3]
		}, false},
		"a node has it": {ends(func(o *decide.MemberEnd) { o.Record.Owner = atA }), false},
		"an operation is open": {ends(func(o *decide.MemberEnd) {
			o.Record.Operation = &nodev1.Operation{Id: "op1"}
		}), false},
		"it is of no set":            {ends(func(o *decide.MemberEnd) { o.Record.Uid = "u1" }), false},
		"a node made it":             {ends(func(o *decide.MemberEnd) { o.Record.MadeBy = "a" }), false},
		"there is no record":         {ends(func(o *decide.MemberEnd) { o.Record = nil }), false},
		"an orphan has it":           {ends(func(o *decide.MemberEnd) { o.VM = world(orphan).Object }), false},
		"a VM has the name":          {ends(func(o *decide.MemberEnd) { o.VM = world().Object }), false},
		"set and VM were made again": {vm(another(), func(*v1alpha1.VirtualMachine) {}), true},
		"the set was made again, and an orphan has its name": {vm(another(), func(vm *v1alpha1.VirtualMachine) {
			vm.OwnerReferences = nil
		}), false},
		"the set was made again, and was given an orphan": {vm(another(), func(vm *v1alpha1.VirtualMachine) {
			vm.CreationTimestamp = later(-time.Second)
		}), false},
		"the set was made again, and was given an orphan with its status": {vm(another(),
			func(vm *v1alpha1.VirtualMachine) { vm.Status.RecordUID = "s1.worker" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(owned(asleep), worker(set()))
			o := decide.MemberEnd{Record: w.Record, Sets: []v1alpha1.VirtualMachineSet{*set()}}
			test.change(&o)
			if got := decide.NextMemberEnd(o).Do == decide.RemoveRecord; got != test.ends {
				t.Errorf("it ends: %v", got)
			}
		})
	}
}
