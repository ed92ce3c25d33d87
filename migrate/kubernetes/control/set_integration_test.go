//go:build integration

package control

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// newSet is a set with a main VM and another one.
func newSet(namespace, name string) *v1alpha1.VirtualMachineSet {
	set := &v1alpha1.VirtualMachineSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	spec := v1alpha1.VirtualMachineSettings{}
	spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	set.Spec.Members = []v1alpha1.SetMember{{Name: "main", Role: v1alpha1.RoleMain, Spec: spec},
		{Name: "worker", Role: v1alpha1.RoleMember, Spec: spec}}
	return set
}

// gather makes a set with a main VM and another one, and waits until both run.
func (w *world) gather(name string) *v1alpha1.VirtualMachineSet {
	w.t.Helper()
	set := newSet("default", name)
	if err := w.api.Create(w.t.Context(), set); err != nil {
		w.t.Fatal(err)
	}
	w.running(name+"-main", "a")
	w.running(name+"-worker", "a")
	return set
}

// suspend has the VMs of a set sleep.
func (w *world) suspend(set *v1alpha1.VirtualMachineSet) {
	w.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))
	if err := w.api.Patch(w.t.Context(), set, patch); err != nil {
		w.t.Fatal(err)
	}
	for _, m := range set.Spec.Members {
		name := set.Name + "-" + m.Name
		w.until(name, "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
			return vm.Status.Phase == v1alpha1.VMHibernated && len(w.pods(name)) == 0
		})
	}
}

// orphan takes off what says that a VM is a member of a set, as garbage collection does, and a person may.
func (w *world) orphan(name string) {
	w.t.Helper()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	if err := w.api.Patch(w.t.Context(), vm, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"ownerReferences":null,"labels":null}}`))); err != nil {
		w.t.Fatal(err)
	}
}

// A set is deleted without its VMs (--cascade=orphan). The one that sleeps wakes with its memory. The one that runs
// moves, is wanted when its pod is stopped, and each ends with its record.
func TestOrphansOfASet(t *testing.T) {
	w := newWorld(t)
	set := w.gather("orphans")
	w.suspend(set)
	for _, m := range set.Spec.Members {
		w.orphan("orphans-" + m.Name)
	}
	if err := w.api.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	for _, m := range set.Spec.Members {
		name := "orphans-" + m.Name
		w.wants(name, `"operatingMode":"Running"`)
		w.running(name, "a")
		w.wants(name, `"nodeName":"c"`)
		pod := w.running(name, "c")
		rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default." + name)})
		if err != nil || rec.GetUid() != string(set.UID)+"."+m.Name {
			t.Errorf("the record of VM %s is %v: %v", name, rec, err)
		}
		w.isWanted(pod, rec)
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		if err := w.api.Delete(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		w.recordGone("default." + name)
	}
}

// isWanted asks as a shim does whose pod is stopped, and no reason is known yet.
func (w *world) isWanted(pod *corev1.Pod, rec *nodev1.Record) {
	w.t.Helper()
	got, err := w.asks().Stopping(controller.WithPeer(w.t.Context(), pod.Spec.NodeName),
		&nodev1.StoppingRequest{Pod: asked(pod), Vm: rec.GetVm(), Uid: rec.GetUid()})
	if err != nil || !got.GetStays() {
		w.t.Errorf("the stop of pod %s is answered %v, %v", pod.Name, got, err)
	}
}

// phased waits until the VMs of a set are in a phase.
func (w *world) phased(set *v1alpha1.VirtualMachineSet, phase v1alpha1.VMPhase) {
	w.t.Helper()
	for _, m := range set.Spec.Members {
		key, vm := client.ObjectKey{Namespace: set.Namespace, Name: set.Name + "-" + m.Name}, &v1alpha1.VirtualMachine{}
		apitest.Eventually(w.t, "VM "+key.String()+" is "+string(phase), func() (bool, error) {
			err := w.api.Get(w.t.Context(), key, vm)
			return err == nil && vm.Status.Phase == phase, fmt.Errorf("%v: %+v", err, vm.Status)
		})
	}
}

// team is a set of a namespace of its own, all of whose VMs sleep.
func (w *world) team(namespace string) *v1alpha1.VirtualMachineSet {
	w.t.Helper()
	if err := w.api.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		w.t.Fatal(err)
	}
	set := newSet(namespace, "shop")
	if err := w.api.Create(w.t.Context(), set); err != nil {
		w.t.Fatal(err)
	}
	w.phased(set, v1alpha1.VMRunning)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))
	if err := w.api.Patch(w.t.Context(), set, patch); err != nil {
		w.t.Fatal(err)
	}
	w.phased(set, v1alpha1.VMHibernated)
	return set
}

// oneByOne deletes objects of a namespace, each after the one before is gone, as its end does.
func (w *world) oneByOne(all ...client.Object) {
	w.t.Helper()
	for _, o := range all {
		if err := w.api.Delete(w.t.Context(), o); err != nil && !store.IsAbsent(err) {
			w.t.Fatal(err)
		}
		apitest.Eventually(w.t, o.GetName()+" is gone", func() (bool, error) {
			err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
			return store.IsAbsent(err), err
		})
	}
}

// A namespace is deleted whose VMs sleep: one kind of objects after the other, in no fixed order. No record stays.
func TestNamespaceOfASleepingSet(t *testing.T) {
	w := newWorld(t)
	vm := func(set *v1alpha1.VirtualMachineSet, member string) client.Object {
		return &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: set.Name + "-" + member,
			Namespace: set.Namespace}}
	}
	for name, order := range map[string]func(*v1alpha1.VirtualMachineSet) []client.Object{
		"vms-first": func(set *v1alpha1.VirtualMachineSet) []client.Object {
			return []client.Object{vm(set, "main"), vm(set, "worker"), set}
		},
		"sets-first": func(set *v1alpha1.VirtualMachineSet) []client.Object {
			return []client.Object{set, vm(set, "worker"), vm(set, "main")}
		},
		"set-between": func(set *v1alpha1.VirtualMachineSet) []client.Object {
			return []client.Object{vm(set, "worker"), set, vm(set, "main")}
		},
	} {
		set := w.team(name)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := w.api.Delete(t.Context(), namespace); err != nil { // nothing is made there from now on
			t.Fatal(err)
		}
		w.oneByOne(order(set)...)
		w.recordGone(name + ".shop-main")
		w.recordGone(name + ".shop-worker")
	}
}

// A member is deleted while its set is suspended, and taken out of the set. Its record ends. That of the member which
// stays does not: it wakes with its memory.
func TestMemberTakenOutAsleep(t *testing.T) {
	w := newWorld(t)
	set := w.team("taken-out")
	worker := &v1alpha1.VirtualMachine{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Namespace: "taken-out", Name: "shop-worker"}, worker); err != nil {
		t.Fatal(err)
	}
	taken := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/members/1"}]`))
	if err := w.api.Patch(t.Context(), set, taken); err != nil {
		t.Fatal(err)
	}
	w.oneByOne(worker)
	w.recordGone("taken-out.shop-worker")
	on := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))
	if err := w.api.Patch(t.Context(), set, on); err != nil {
		t.Fatal(err)
	}
	w.phased(set, v1alpha1.VMRunning)
	rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("taken-out.shop-main")})
	if err != nil || rec.GetUid() != string(set.UID)+".main" || len(rec.GetSnapshots()) == 0 {
		t.Errorf("the member that stays has the record %v: %v", rec, err)
	}
}

// recordGone waits until a record has ended. What is left of it are the deletions of snapshots: nodes carry them out.
func (w *world) recordGone(name string) {
	w.t.Helper()
	apitest.Eventually(w.t, "VMRecord "+name+" has ended", func() (bool, error) {
		o := &v1alpha1.VMRecord{}
		err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, o)
		return store.IsAbsent(err) || err == nil && o.Record == nil, fmt.Errorf("%v: %+v", err, o.Summary)
	})
}
