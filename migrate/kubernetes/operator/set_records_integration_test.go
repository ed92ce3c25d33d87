//go:build integration

package operator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func newSet(namespace, name string, members ...string) *v1alpha1.VirtualMachineSet {
	set := &v1alpha1.VirtualMachineSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	for i, m := range members {
		role := v1alpha1.RoleMember
		if i == 0 {
			role = v1alpha1.RoleMain
		}
		set.Spec.Members = append(set.Spec.Members, v1alpha1.SetMember{Name: m, Role: role,
			Spec: newVM("").Spec.VirtualMachineSettings})
	}
	return set
}

// recordOf waits until a record is as it should be.
func (n node) recordOf(t *testing.T, id, what string, is func(*nodev1.Record) bool) (rec *nodev1.Record) {
	t.Helper()
	apitest.Eventually(t, "the record of VM "+id+" "+what, func() (bool, error) {
		var err error
		rec, err = n.service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf(id)})
		return is(rec), fmt.Errorf("%w: %v", errors.Join(err), rec)
	})
	return rec
}

// A VM that names the set of another namespace as its owner gets no record of that set's member. Nothing of the member
// changes.
func TestOwnerOfAnotherNamespace(t *testing.T) {
	start(t)
	n := newNode(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	set := newSet("default", "bank", "main")
	create(t, set)
	n.recordOf(t, "default.bank-main", "is there", func(r *nodev1.Record) bool { return r != nil })
	for _, name := range []string{"x", "bank-main"} {
		evil := newVM(name)
		evil.Namespace, evil.Labels = "tenant", map[string]string{"godwit.dev/member": "main"}
		evil.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			v1alpha1.GroupVersion.WithKind("VirtualMachineSet"))}
		create(t, evil)
		key := client.ObjectKeyFromObject(evil)
		apitest.Eventually(t, "VM "+name+" is refused", func() (bool, error) {
			err := api().Get(t.Context(), key, evil)
			c := meta.FindStatusCondition(evil.Status.Conditions, decide.CondProgressing)
			return err == nil && c != nil && c.Status == metav1.ConditionFalse && c.Reason == string(decide.ReasonInvalid),
				fmt.Errorf("%w: %+v", err, evil.Status)
		})
		if rec, err := n.service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf("tenant." + name)}); err == nil {
			t.Errorf("it has the record %v", rec)
		}
		evil.OwnerReferences = nil // as garbage collection does
		if err := api().Update(t.Context(), evil); err != nil {
			t.Fatal(err)
		}
		n.recordOf(t, "tenant."+name, "has the uid of its own object", func(r *nodev1.Record) bool {
			return r.GetUid() == string(evil.UID)
		})
		if err := api().Delete(t.Context(), evil); err != nil {
			t.Fatal(err)
		}
	}
	cleanSet(t, n, set)
}

// cleanSet ends a set of a test with its VMs, none of which runs: garbage collection deletes them elsewhere.
func cleanSet(t *testing.T, n node, set *v1alpha1.VirtualMachineSet) {
	t.Helper()
	if err := api().Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	for _, m := range set.Spec.Members {
		remove(t, n, set.Name+"-"+m.Name, "", set.Name+"-"+m.Name+"-g1-a0")
	}
}

// A copy of a member under another name, with its label and its owner, is no member. The set goes on with the one that
// it has made, and the copy gets no record.
func TestCopyOfAMember(t *testing.T) {
	start(t)
	n := newNode(t)
	set := newSet("default", "shop", "main")
	create(t, set)
	n.boot(t, podIs(t, "shop-main-g1-a0", true), "a")
	first, _ := get(t, "shop-main", &v1alpha1.VirtualMachine{})
	copied := newVM("zcopy")
	copied.Labels, copied.OwnerReferences = first.Labels, first.OwnerReferences
	create(t, copied)
	apitest.Eventually(t, "the copy is refused", func() (bool, error) {
		vm, _ := get(t, "zcopy", &v1alpha1.VirtualMachine{})
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && c.Reason == string(decide.ReasonInvalid), fmt.Errorf("%+v", vm.Status)
	})
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))
	if err := api().Patch(t.Context(), set, patch); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the member is suspended", func() (bool, error) {
		vm, _ := get(t, "shop-main", &v1alpha1.VirtualMachine{})
		return vm.Spec.OperatingMode == v1alpha1.ModeHibernated, nil
	})
	if vm, there := get(t, "zcopy", &v1alpha1.VirtualMachine{}); !there || vm.DeletionTimestamp != nil ||
		vm.Spec.OperatingMode == v1alpha1.ModeHibernated {
		t.Errorf("the set has changed the copy: %+v", vm)
	}
	if rec, err := n.service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf("default.zcopy")}); err == nil {
		t.Errorf("the copy has the record %v", rec)
	}
	if err := api().Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	remove(t, n, "zcopy", "", "none")
	remove(t, n, "shop-main", "a", "shop-main-g1-a0")
}

// A member that is taken out of its set and put in again is another VM: a node may hold what was given up.
func TestMemberPutInAgain(t *testing.T) {
	start(t)
	n := newNode(t)
	set := newSet("default", "again", "main", "worker")
	create(t, set)
	n.boot(t, podIs(t, "again-worker-g1-a0", true), "a")
	first := n.recordOf(t, "default.again-worker", "is there", func(r *nodev1.Record) bool { return r != nil })
	listed := func(members []v1alpha1.SetMember) {
		t.Helper()
		apitest.Eventually(t, "the set is written", func() (bool, error) {
			if _, there := get(t, "again", set); !there {
				return false, nil
			}
			set.Spec.Members = members
			err := api().Update(t.Context(), set)
			return err == nil, err
		})
	}
	all := slices.Clone(set.Spec.Members)
	listed(all[:1])
	apitest.Eventually(t, "its pod is deleted", func() (bool, error) {
		p, there := get(t, "again-worker-g1-a0", &corev1.Pod{})
		return !there || p.DeletionTimestamp != nil, nil
	})
	n.end(t, "again-worker", "a", "again-worker-g1-a0")
	n.recordOf(t, "default.again-worker", "ends", func(r *nodev1.Record) bool { return r == nil })
	listed(all)
	second := n.recordOf(t, "default.again-worker", "is another one", func(r *nodev1.Record) bool { return r != nil })
	if second.GetUid() == first.GetUid() || second.GetUid() == "" {
		t.Errorf("uid %q, before %q", second.GetUid(), first.GetUid())
	}
	pod := podIs(t, "again-worker-g1-a0", true)
	if got := pod.Labels["godwit.dev/record-uid"]; got != second.GetUid() {
		t.Errorf("its pod is of %s", got)
	}
	cleanSet(t, n, set)
}

// A VM has the name of a member, and no owner. The set says so, makes its other members, and takes the VM as it is once
// it is the owner.
func TestNameOfAMemberIsTaken(t *testing.T) {
	start(t)
	n := newNode(t)
	foreign := newVM("taken-worker")
	foreign.Spec.OperatingMode = v1alpha1.ModeStopped
	create(t, foreign)
	set := newSet("default", "taken", "worker", "other")
	set.Spec.Suspend = true
	create(t, set)
	says := func() (string, error) {
		is := &v1alpha1.VirtualMachineSet{}
		err := api().Get(t.Context(), client.ObjectKeyFromObject(set), is)
		c := meta.FindStatusCondition(is.Status.Conditions, decide.CondProgressing)
		if c == nil {
			return "", err
		}
		return c.Message, err
	}
	apitest.Eventually(t, "the set says that the name is taken", func() (bool, error) {
		message, err := says()
		return strings.Contains(message, "VirtualMachine taken-worker is there"), fmt.Errorf("%q, %w", message, err)
	})
	if _, there := get(t, "taken-other", &v1alpha1.VirtualMachine{}); !there {
		t.Error("the other member was not made")
	}
	owner := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":%q,
		"kind":"VirtualMachineSet","name":"taken","uid":%q,"controller":true}]}}`, v1alpha1.GroupVersion, set.UID))
	if err := api().Patch(t.Context(), foreign, owner); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the set suspends its new member", func() (bool, error) {
		vm, _ := get(t, "taken-worker", &v1alpha1.VirtualMachine{})
		return vm.Spec.OperatingMode == v1alpha1.ModeHibernated, nil
	})
	if err := api().Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	remove(t, n, "taken-worker", "", "none")
	remove(t, n, "taken-other", "", "none")
}

// A node that has learned the uid of an object, and made a record of it, does not share what that VM stores.
func TestUIDThatAnotherRecordHas(t *testing.T) {
	start(t)
	n := newNode(t)
	vm := newVM("robbed")
	vm.Spec.OperatingMode = v1alpha1.ModeStopped // it has no record yet
	create(t, vm)
	if _, err := n.service.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: vmOf("default.robber"), Uid: string(vm.UID),
		Node: "a"}); err != nil {
		t.Fatal(err)
	}
	mode(t, "robbed", v1alpha1.ModeRunning)
	apitest.Eventually(t, "it is told", func() (bool, error) {
		all := &eventsv1.EventList{}
		err := api().List(t.Context(), all, client.InNamespace("default"))
		return err == nil && slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == vm.UID && e.Reason == string(decide.EnsureRecord)+"Failed"
		}), err
	})
	if rec, err := n.service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf("default.robbed")}); err == nil {
		t.Errorf("it has the record %v", rec)
	}
	remove(t, n, "robbed", "", "none")
}
