package pods_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// Which member a VM is: its owner says so, and the set. The label says nothing.
func TestMember(t *testing.T) {
	for name, test := range map[string]struct {
		change func(vm *v1alpha1.VirtualMachine, set *v1alpha1.VirtualMachineSet)
		want   string
	}{
		"a member": {func(*v1alpha1.VirtualMachine, *v1alpha1.VirtualMachineSet) {}, "worker"},
		"with the label of another": {func(vm *v1alpha1.VirtualMachine, _ *v1alpha1.VirtualMachineSet) {
			vm.Labels = map[string]string{pods.LabelMember: "main"}
		}, "worker"},
		"a copy": {func(vm *v1alpha1.VirtualMachine, _ *v1alpha1.VirtualMachineSet) { vm.Name = "copy" }, ""},
		"a copy with the set's name": {func(vm *v1alpha1.VirtualMachine, _ *v1alpha1.VirtualMachineSet) {
			vm.Name = "set-copy"
		}, ""},
		"a set of another namespace": {func(_ *v1alpha1.VirtualMachine, set *v1alpha1.VirtualMachineSet) {
			set.Namespace = "other"
		}, ""},
		"a set made again": {func(_ *v1alpha1.VirtualMachine, set *v1alpha1.VirtualMachineSet) { set.UID = "s2" }, ""},
		"not listed any more": {func(_ *v1alpha1.VirtualMachine, set *v1alpha1.VirtualMachineSet) {
			set.Spec.Members = set.Spec.Members[:1]
		}, ""},
		"an owner that does not control": {func(vm *v1alpha1.VirtualMachine, _ *v1alpha1.VirtualMachineSet) {
			vm.OwnerReferences[0].Controller = nil
		}, ""},
		"an owner of another kind": {func(vm *v1alpha1.VirtualMachine, _ *v1alpha1.VirtualMachineSet) {
			vm.OwnerReferences[0].APIVersion = "x/v1"
		}, ""},
		"an owner of another name": {func(vm *v1alpha1.VirtualMachine, _ *v1alpha1.VirtualMachineSet) {
			vm.OwnerReferences[0].Name = "other"
		}, ""},
	} {
		vm := machine()
		set := member(vm)
		test.change(vm, set)
		if got := pods.Member(vm, set); got != test.want {
			t.Errorf("%s: member %q, want %q", name, got, test.want)
		}
	}
	if got := pods.Member(machine(), nil); got != "" {
		t.Errorf("of no set it is member %q", got)
	}
}

// The VMs of a set have the members' names. Which of two has the label, or comes last, does not matter.
func TestMembers(t *testing.T) {
	named := func(name, label string, uid types.UID) v1alpha1.VirtualMachine {
		vm := machine()
		member(vm)
		vm.Name, vm.UID, vm.Labels = name, uid, map[string]string{pods.LabelMember: label}
		return *vm
	}
	set := member(machine())
	strange := named("set-main", "main", "strange")
	strange.OwnerReferences = nil
	all := []v1alpha1.VirtualMachine{named("copy", "worker", "copy"), named("set-worker", "", "first"),
		named("set-copy", "worker", "copy"), named("set-old", "old", "old"), strange}
	for range 2 {
		got := pods.Members(set, all)
		if len(got) != 2 || got["worker"].UID != "first" || got["old"].UID != "old" {
			t.Errorf("members %v", got)
		}
		slices.Reverse(all)
	}
}

// The uids that a member's record may have are of its own set and its own member.
func TestMemberUIDs(t *testing.T) {
	all := pods.MemberUIDs("s1", "worker")
	if all[0] != "s1.worker" {
		t.Errorf("the first one is %s", all[0])
	}
	seen := map[string]bool{}
	for _, uid := range all {
		if seen[uid] || !pods.HangsOn("s1", "worker", uid) || pods.HangsOn("s2", "worker", uid) ||
			pods.HangsOn("s1", "main", uid) || !pods.Fits("set-worker", uid) || pods.Fits("set-main", uid) ||
			pods.Fits("worker", uid) {
			t.Fatalf("uid %s", uid)
		}
		seen[uid] = true
	}
	if pods.HangsOn("s1", "", "s1.") || pods.HangsOn("s1", "worker", "") || pods.Fits("vm", "u1") || pods.Fits("vm", "") {
		t.Error("a uid without a member hangs on a set")
	}
}
