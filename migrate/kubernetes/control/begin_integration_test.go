//go:build integration

package control

import (
	"cmp"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// begins makes a VM that is to begin from a VMSnapshot.
func (w *world) begins(name, snapshot string, change ...func(*v1alpha1.VirtualMachine)) {
	w.t.Helper()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.RestoreFrom = &v1alpha1.LocalRef{Name: snapshot}
	for _, c := range change {
		c(vm)
	}
	if err := w.api.Create(w.t.Context(), vm); err != nil {
		w.t.Fatal(err)
	}
}

// orderSnapshot makes a VMSnapshot of a VM that runs, and waits for its work order.
func (w *world) orderSnapshot(name, vm string) (snap *v1alpha1.VMSnapshot, content *v1alpha1.VMSnapshotContent) {
	w.t.Helper()
	snap = &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	snap.Spec.Source.VMRef = &v1alpha1.VMRef{Name: vm}
	if err := w.api.Create(w.t.Context(), snap); err != nil {
		w.t.Fatal(err)
	}
	return snap, w.orderOf(snap)
}

func (w *world) orderOf(snap *v1alpha1.VMSnapshot) *v1alpha1.VMSnapshotContent {
	w.t.Helper()
	content := &v1alpha1.VMSnapshotContent{}
	apitest.Eventually(w.t, "the work order of VMSnapshot "+snap.Name, func() (bool, error) {
		err := w.api.Get(w.t.Context(), types.NamespacedName{Name: decide.OrderName(snap.UID)}, content)
		return err == nil, err
	})
	return content
}

// snapshot makes a VMSnapshot of a VM that runs. The test is the agent of its node.
func (w *world) snapshot(name, vm string) *v1alpha1.VMSnapshot {
	w.t.Helper()
	snap, content := w.orderSnapshot(name, vm)
	w.capture(snap, content, vm)
	return snap
}

func (w *world) capture(snap *v1alpha1.VMSnapshot, content *v1alpha1.VMSnapshotContent, vm string) {
	w.t.Helper()
	id := string(snap.UID)
	apitest.Eventually(w.t, "the record lists snapshot "+snap.Name, func() (bool, error) {
		rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed("default." + vm)})
		if err != nil {
			return false, err
		}
		for _, ref := range rec.GetSnapshots() {
			if ref.GetOperation() == id {
				content.Status.Digest = ref.GetDigest()
				return rec.GetOperation() == nil, nil
			}
		}
		generation := rec.GetGeneration()
		_, err = w.records.Open(w.t.Context(), &nodev1.OpenRequest{Vm: rec.GetVm(), Uid: rec.GetUid(),
			Operation: &nodev1.Operation{Id: id, Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1, Generation: generation,
				Source: rec.GetOwner().GetNode(), Repository: cmp.Or(rec.GetPrefix(), "r") + "/" + rec.GetUid(), Manual: true,
				Tag: record.SnapshotTag(generation, id, 1)}})
		return false, err
	})
	apitest.Eventually(w.t, "VMSnapshot "+snap.Name+" is Ready", func() (bool, error) {
		digest := content.Status.Digest
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(content), content); err != nil {
			return false, err
		}
		content.Status.Digest = digest
		meta.SetStatusCondition(&content.Status.Conditions, metav1.Condition{Type: decide.CondReady,
			Status: metav1.ConditionTrue, Reason: "Ready"})
		if err := w.api.Status().Update(w.t.Context(), content); err != nil {
			return false, err
		}
		return w.isReady(snap)
	})
}

func (w *world) isReady(snap *v1alpha1.VMSnapshot) (bool, error) {
	err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(snap), snap)
	return err == nil && meta.IsStatusConditionTrue(snap.Status.Conditions, decide.CondReady),
		errors.Join(err, fmt.Errorf("%+v", snap.Status))
}

// waits until a VM says why it does not begin. It has no pod.
func (w *world) waits(name string, why decide.Reason) {
	w.t.Helper()
	w.until(name, "waits: "+string(why), func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && c.Reason == string(why) && vm.Status.Phase == v1alpha1.VMPending
	})
	if all := w.pods(name); len(all) != 0 {
		w.t.Errorf("VM %s has pod %s", name, all[0].Name)
	}
}

// delete deletes an object, and waits until it is gone.
func (w *world) delete(o client.Object) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	w.absent(o)
}

func (w *world) absent(o client.Object) {
	w.t.Helper()
	apitest.Eventually(w.t, o.GetName()+" is gone", func() (bool, error) {
		err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
		return store.IsAbsent(err), fmt.Errorf("%v: %v", err, o)
	})
}

func machine(name string) *v1alpha1.VirtualMachine {
	return &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
}

// begun waits until a VM runs that has begun from a snapshot, with its memory.
func (w *world) begun(name string, snap *v1alpha1.VMSnapshot) {
	w.t.Helper()
	w.restored(w.running(name, "a"), decide.ReasonWoken)
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed("default." + name)})
	if err != nil || len(rec.GetSnapshots()) == 0 || rec.GetSnapshots()[0].GetOperation() != string(snap.UID) ||
		rec.GetSnapshots()[0].GetOrigin() == nil || !rec.GetRestoreFrom().GetBegun() {
		w.t.Errorf("record %v, %v", rec, err)
	}
	if ready, err := w.isReady(snap); !ready {
		w.t.Errorf("VMSnapshot %s is not Ready: %v", snap.Name, err)
	}
}

// owes reports whether a snapshot is to be deleted.
func (w *world) owes(snap *v1alpha1.VMSnapshot) bool {
	w.t.Helper()
	all, err := w.records.Owed(w.t.Context(), &nodev1.OwedRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range all.GetOwed() {
		if o.GetSnapshot().GetOperation() == string(snap.UID) {
			return true
		}
	}
	return false
}

// A VM is refused a snapshot whose VM is there. Once that is deleted it begins from it, with its memory, and no other
// VM does. The snapshot stays until its VMSnapshot goes, which waits for the VM.
func TestBeginsFromASnapshot(t *testing.T) {
	w := newWorld(t)
	w.create("src")
	snap := w.snapshot("nightly", "src")
	w.begins("next", "nightly")
	w.waits("next", decide.ReasonForkUnsupported)
	w.told("next", string(decide.ReasonForkUnsupported))
	w.delete(machine("src"))
	w.begun("next", snap)
	w.begins("late", "nightly")
	w.waits("late", decide.ReasonSnapshotTaken)
	if w.owes(snap) {
		t.Error("the snapshot is to be deleted")
	}
	if err := w.api.Delete(t.Context(), snap.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the VMSnapshot waits for the VM that runs from it", func() (bool, error) {
		err := w.api.Get(t.Context(), client.ObjectKeyFromObject(snap), snap)
		content := &v1alpha1.VMSnapshotContent{}
		if err == nil {
			err = w.api.Get(t.Context(), types.NamespacedName{Name: decide.OrderName(snap.UID)}, content)
		}
		return err == nil && content.DeletionTimestamp != nil, err
	})
	w.waits("late", decide.ReasonSnapshotGone)
	if w.owes(snap) {
		t.Error("the snapshot that a VM runs from is to be deleted")
	}
	w.wants("next", `"operatingMode":"Hibernated"`)
	w.until("next", "sleeps in a snapshot of its own", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && vm.Status.Owner.Digest != digest
	})
	w.absent(snap)
	if !w.owes(snap) {
		t.Error("the snapshot is not to be deleted")
	}
	w.wants("next", `"operatingMode":"Running"`)
	w.running("next", "a")
	w.delete(machine("next"))
	w.delete(machine("late"))
}

// Of two VMs that wait for one snapshot, one begins. The other one is told, and has its turn when that is gone.
func TestTwoVMsOfOneSnapshot(t *testing.T) {
	w := newWorld(t)
	w.create("one")
	snap := w.snapshot("of-one", "one")
	w.begins("two-a", "of-one")
	w.begins("two-b", "of-one")
	w.waits("two-a", decide.ReasonForkUnsupported)
	w.waits("two-b", decide.ReasonForkUnsupported)
	w.delete(machine("one"))
	first, second := "", ""
	apitest.Eventually(t, "one of them runs", func() (bool, error) {
		for name, other := range map[string]string{"two-a": "two-b", "two-b": "two-a"} {
			if w.is("default."+name, "a") == runs {
				first, second = name, other
			}
		}
		return first != "", nil
	})
	w.begun(first, snap)
	w.waits(second, decide.ReasonSnapshotTaken)
	w.delete(machine(first))
	w.begun(second, snap)
	w.delete(machine(second))
	w.delete(snap)
}

// What is no snapshot of the namespace, or is not Ready, is waited for. So it is while the API server does not say.
func TestWaitsForItsSnapshot(t *testing.T) {
	w := newWorld(t)
	w.begins("early", "of-slow")
	w.waits("early", decide.ReasonSnapshotNotFound)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}
	other := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "of-slow", Namespace: "elsewhere"}}
	other.Spec.Source.VMRef = &v1alpha1.VMRef{Name: "slow"}
	for _, o := range []client.Object{ns, other} {
		if err := w.api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.create("slow")
	w.mu.Lock()
	w.hangs[nodev1.Phase_PHASE_TRANSFERRING] = true
	w.mu.Unlock()
	w.waits("early", decide.ReasonSnapshotNotFound)
	snap, content := w.orderSnapshot("of-slow", "slow")
	w.waits("early", decide.ReasonSnapshotNotReady)
	w.mu.Lock()
	w.hangs = map[nodev1.Phase]bool{}
	w.mu.Unlock()
	w.capture(snap, content, "slow")
	w.waits("early", decide.ReasonForkUnsupported)
	w.mu.Lock()
	w.noSnapshots = true
	w.mu.Unlock()
	w.wants("early", `"template":{"metadata":{"labels":{"changed":"yes"}}}`) // so that it is looked at anew
	w.waits("early", decide.ReasonRecordsUnavailable)
	if err := w.api.Delete(t.Context(), machine("slow")); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the VM that is deleted has no pod", func() (bool, error) {
		return len(w.pods("slow")) == 0, nil
	})
	// What the VM leaves is not known either: its record stays.
	rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default.slow")})
	if err != nil || len(rec.GetSnapshots()) != 1 {
		t.Errorf("its record: %v, %v", rec, err)
	}
	w.waits("early", decide.ReasonRecordsUnavailable)
	w.mu.Lock()
	w.noSnapshots = false
	w.mu.Unlock()
	w.begun("early", snap)
	w.delete(machine("early"))
	w.delete(snap)
}

// An operator that is killed after every few writes, before it hears the answer to the last one, has one VM begin all
// the same. A removal is noted anew before each try, so one write is too few.
func TestBeginKilledAtEachWrite(t *testing.T) {
	for _, every := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint("after ", every), func(t *testing.T) {
			w := newWorld(t)
			src, of, next := fmt.Sprint("src-k", every), fmt.Sprint("of-k", every), fmt.Sprint("next-k", every)
			w.create(src)
			snap := w.snapshot(of, src)
			w.begins(next, of)
			w.begins(next+"-too", of)
			w.waits(next, decide.ReasonForkUnsupported)
			w.waits(next+"-too", decide.ReasonForkUnsupported)
			w.mu.Lock()
			w.every = every
			w.mu.Unlock()
			w.delete(machine(src))
			won := ""
			apitest.Eventually(t, "one of them runs", func() (bool, error) {
				for _, name := range []string{next, next + "-too"} {
					if w.is("default."+name, "a") == runs {
						won = name
					}
				}
				return won != "", nil
			})
			w.begun(won, snap)
			other := next
			if won == next {
				other = next + "-too"
			}
			w.waits(other, decide.ReasonSnapshotTaken)
			w.mu.Lock()
			if w.every = 0; w.kills < 4 {
				t.Errorf("%d operators were killed", w.kills)
			}
			w.mu.Unlock()
			for _, o := range []client.Object{machine(other), machine(won), snap} { // so that the next operators leave them
				w.delete(o)
			}
		})
	}
}

// A VM that has begun from a snapshot reads it with the login of the class that its source had. The node that made it
// does not get that login any more.
func TestLoginOfWhatAVMBeganFrom(t *testing.T) {
	w := newWorld(t)
	secret := loginSecret(apitest.System, "reg.example", first)
	secret.Name = "of-begun"
	for _, o := range []client.Object{secret, &v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "begun"},
		Spec: v1alpha1.VMSnapshotClassSpec{Repository: "reg.example/begun", AllowedNamespaces: &metav1.LabelSelector{},
			PullSecretRef: &v1alpha1.SecretRef{Namespace: apitest.System, Name: "of-begun"}}}} {
		if err := w.api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	src := machine("classy")
	src.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	src.Spec.SnapshotClassName, src.Spec.NodeName = "begun", "b"
	if err := w.api.Create(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	w.running("classy", "b")
	repository := "reg.example/begun/" + string(src.UID)
	snap := w.snapshot("of-classy", "classy")
	w.delete(machine("classy"))
	if err := (asking{w, "b"}).refused(repository); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the node that made what is held: %v", err)
	}
	w.begins("classless", "of-classy")
	w.begun("classless", snap)
	login, err := asking{w, "a"}.Login(t.Context(), &nodev1.LoginRequest{Repository: repository})
	if err != nil || login.GetPassword() != first {
		t.Errorf("the node of the VM that has begun: %v", err)
	}
	if err := (asking{w, "b"}).refused(repository); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the node that made it: %v", err)
	}
	w.delete(machine("classless"))
	w.delete(snap)
}
