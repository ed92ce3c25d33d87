//go:build integration

package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"
)

// remove ends a VM of a test, with all that is of it.
func remove(t *testing.T, n node, name, on, pod string) {
	t.Helper()
	if err := api().Delete(t.Context(), newVM(name)); err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
	if on != "" {
		apitest.Eventually(t, "the pod of "+name+" is deleted", func() (bool, error) {
			p, there := get(t, pod, &corev1.Pod{})
			return !there || p.DeletionTimestamp != nil, nil
		})
		n.end(t, name, on, pod)
	} else {
		n.forget(t, pod)
	}
	apitest.Eventually(t, "VM "+name+" is gone", func() (bool, error) {
		vm, there := get(t, name, &v1alpha1.VirtualMachine{})
		return !there, fmt.Errorf("it is %+v", vm.Status)
	})
}

// A VM boots, stops, boots again and goes, with its record.
func TestBootStopDelete(t *testing.T) {
	start(t)
	n := newNode(t)
	create(t, newVM("life"))
	pod := podIs(t, "life-g1-a0", true)
	vm := inPhase(t, "life", v1alpha1.VMScheduling)
	if len(vm.Finalizers) != 1 || vm.Status.RecordUID != string(vm.UID) || vm.Status.ObservedGeneration != vm.Generation {
		t.Errorf("finalizers %v, status %+v", vm.Finalizers, vm.Status)
	}
	n.boot(t, pod, "a")
	apitest.Eventually(t, "VM life is ready", func() (bool, error) {
		vm, _ = get(t, "life", &v1alpha1.VirtualMachine{})
		return meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondReady), fmt.Errorf("status %+v", vm.Status)
	})
	if vm.Status.Phase != v1alpha1.VMRunning || vm.Status.Owner.Node != "a" || vm.Status.Pod.Name != "life-g1-a0" {
		t.Errorf("status %+v", vm.Status)
	}
	apitest.Eventually(t, "the gate is open", func() (bool, error) {
		pod, _ = get(t, "life-g1-a0", &corev1.Pod{})
		for _, c := range pod.Status.Conditions {
			if c.Type == "godwit.dev/running" && c.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, fmt.Errorf("%v", pod.Status.Conditions)
	})

	mode(t, "life", v1alpha1.ModeStopped)
	apitest.Eventually(t, "the pod is deleted", func() (bool, error) {
		pod, _ = get(t, "life-g1-a0", &corev1.Pod{})
		return pod.DeletionTimestamp != nil, nil
	})
	n.end(t, "life", "a", "life-g1-a0")
	inPhase(t, "life", v1alpha1.VMStopped)
	mode(t, "life", v1alpha1.ModeRunning)
	podIs(t, "life-g3-a0", true)
	remove(t, n, "life", "", "life-g3-a0")
	if _, there := get(t, "default.life", &v1alpha1.VMRecord{}); there {
		t.Error("the record is there")
	}
}

func mode(t *testing.T, name string, m v1alpha1.OperatingMode) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"operatingMode":%q}}`, m))
	if err := api().Patch(t.Context(), newVM(name), patch); err != nil {
		t.Fatal(err)
	}
}

// What happens to objects in the wild, on a real API server: never a second pod, and never a second VM.
func TestFaultsInTheWild(t *testing.T) {
	start(t)
	n := newNode(t)
	create(t, newVM("wild"))
	n.boot(t, podIs(t, "wild-g1-a0", true), "a")
	vm := inPhase(t, "wild", v1alpha1.VMRunning)
	good := vm.DeepCopy()

	vm.Status.Phase, vm.Status.Generation, vm.Status.Pod = v1alpha1.VMHibernated, 77, nil
	vm.Status.Owner = v1alpha1.VMOwner{Digest: "sha256:forged"}
	write(t, "a status edited by hand", vm)
	apitest.Eventually(t, "the status is healed", func() (bool, error) {
		vm, _ = get(t, "wild", &v1alpha1.VirtualMachine{})
		return vm.Status.Generation == 1 && vm.Status.Phase == v1alpha1.VMRunning && vm.Status.Pod != nil &&
			vm.Status.Owner == good.Status.Owner, fmt.Errorf("%+v", vm.Status)
	})
	vm.Status = v1alpha1.VirtualMachineStatus{}
	write(t, "an object restored without status", vm)
	inPhase(t, "wild", v1alpha1.VMRunning)

	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := api().Patch(t.Context(), newVM("wild"), patch); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the finalizer is there again", func() (bool, error) {
		vm, _ = get(t, "wild", &v1alpha1.VirtualMachine{})
		return len(vm.Finalizers) == 1, nil
	})

	// Deleted, with its finalizer stripped, and made again under its name while the first one runs.
	if err := api().Delete(t.Context(), newVM("wild")); err != nil {
		t.Fatal(err)
	}
	if err := api().Patch(t.Context(), newVM("wild"), patch); err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the object is gone", func() (bool, error) {
		_, there := get(t, "wild", &v1alpha1.VirtualMachine{})
		return !there, nil
	})
	create(t, newVM("wild"))
	apitest.Eventually(t, "it is refused", func() (bool, error) {
		vm, _ = get(t, "wild", &v1alpha1.VirtualMachine{})
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && (c.Reason == string(decide.ReasonRecordOfAnother) || c.Reason == string(decide.ReasonPodsAlive)),
			fmt.Errorf("%+v", vm.Status)
	})
	if all := podsOf(t, "wild"); len(all) != 1 || all[0].Name != "wild-g1-a0" {
		t.Errorf("pods %v", all)
	}
	n.end(t, "wild", "a", "wild-g1-a0") // the first one ends, and has no snapshot: the name is free
	second := podIs(t, "wild-g1-a0", true)
	if metav1.GetControllerOf(second).UID != vm.UID {
		t.Error("the pod is the first VM's")
	}
	remove(t, n, "wild", "", "wild-g1-a0")
}

func write(t *testing.T, what string, vm *v1alpha1.VirtualMachine) {
	t.Helper()
	apitest.Eventually(t, what, func() (bool, error) {
		now, _ := get(t, vm.Name, &v1alpha1.VirtualMachine{})
		now.Status = vm.Status
		err := api().Status().Update(t.Context(), now)
		return err == nil, err
	})
}

func podsOf(t *testing.T, vm string) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := api().List(t.Context(), list, client.InNamespace("default"),
		client.MatchingLabels{"godwit.dev/vm": vm}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// liar is a cache that has seen nothing yet.
type liar struct{ client.Reader }

func (l liar) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*v1alpha1.VMRecord); ok {
		return apierrors.NewNotFound(schema.GroupResource{Group: "godwit.dev", Resource: "vmrecords"}, key.Name)
	}
	return l.Reader.Get(ctx, key, o, opts...)
}

func (l liar) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*corev1.PodList); ok {
		return nil
	}
	return l.Reader.List(ctx, list, opts...)
}

// A cache that says "gone" makes no pod and no record: the API server itself is asked first, and a want of an answer is
// no answer.
func TestCacheIsConfirmed(t *testing.T) {
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		t.Fatal(err)
	}
	n, c := newNode(t), api()
	b := base{client: c, cached: View{Reader: c}, current: View{Reader: c}, events: events.NewFakeRecorder(1000),
		records: records{store: st, service: controller.New(st), cached: api()}}
	create(t, newVM("stale"))
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "stale"}}
	look := func(cached, current client.Reader) error {
		b.cached.Reader, b.current.Reader = cached, current
		_, err := vms{b}.reconcile(t.Context(), req)
		return err
	}
	for range 3 {
		if err := look(c, c); err != nil {
			t.Fatal(err)
		}
	}
	n.boot(t, podIs(t, "stale-g1-a0", true), "a")
	before, _ := get(t, "default.stale", &v1alpha1.VMRecord{})
	for range 5 {
		if err := look(liar{c}, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := look(liar{c}, silent{c}); !errors.Is(err, errSilent) {
		t.Errorf("an API server that does not answer: %v", err)
	}
	after, _ := get(t, "default.stale", &v1alpha1.VMRecord{})
	if all := podsOf(t, "stale"); len(all) != 1 || all[0].DeletionTimestamp != nil || after.UID != before.UID ||
		after.Summary.Generation != 1 {
		t.Errorf("pods %v, record %+v", all, after.Summary)
	}
	vm, _ := get(t, "stale", &v1alpha1.VirtualMachine{})
	if vm.Status.Phase != v1alpha1.VMRunning || !meta.IsStatusConditionPresentAndEqual(vm.Status.Conditions,
		decide.CondReady, metav1.ConditionUnknown) {
		t.Errorf("what is not known is denied: %+v", vm.Status)
	}
	if err := c.Delete(t.Context(), newVM("stale")); err != nil {
		t.Fatal(err)
	}
	if err := look(c, c); err != nil {
		t.Fatal(err)
	}
	n.end(t, "stale", "a", "stale-g1-a0")
	for range 3 {
		if err := look(c, c); err != nil {
			t.Fatal(err)
		}
	}
	if _, there := get(t, "stale", &v1alpha1.VirtualMachine{}); there {
		t.Error("it is there")
	}
}

var errSilent = errors.New("no answer, says the test")

// silent reads objects, and has no answer for records.
type silent struct{ client.Reader }

func (s silent) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*v1alpha1.VMRecord); ok {
		return errSilent
	}
	return s.Reader.Get(ctx, key, o, opts...)
}

// A pod that has the next one's name is waited for, and its end is no error.
func TestNameTaken(t *testing.T) {
	start(t)
	n := newNode(t)
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "taken-g1-a0", Namespace: "default",
		Finalizers: []string{"example.com/wait"}}, Spec: newVM("").Spec.Template.Spec}
	create(t, other)
	if err := api().Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	create(t, newVM("taken"))
	apitest.Eventually(t, "its record is there", func() (bool, error) {
		_, there := get(t, "default.taken", &v1alpha1.VMRecord{})
		return there, nil
	})
	inPhase(t, "taken", v1alpha1.VMPending)
	if pod, _ := get(t, other.Name, &corev1.Pod{}); pod.UID != other.UID {
		t.Error("the other pod has gone")
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := api().Patch(t.Context(), other, patch); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the VM's own pod is made", func() (bool, error) {
		pod, there := get(t, other.Name, &corev1.Pod{})
		return there && pod.UID != other.UID, nil
	})
	remove(t, n, "taken", "", other.Name)
}

// Without an engine an order ends at once, and says why. A VM that is to sleep says so too, and runs on.
func TestOrdersEndWithoutAnEngine(t *testing.T) {
	start(t)
	n := newNode(t)
	create(t, newVM("order"))
	n.boot(t, podIs(t, "order-g1-a0", true), "a")
	inPhase(t, "order", v1alpha1.VMRunning)
	create(t, &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Name: "go", Namespace: "default"},
		Spec: v1alpha1.VMOperationSpec{VMRef: v1alpha1.VMRef{Name: "order"}, Kind: v1alpha1.KindMigrate, NodeName: "b"}})
	apitest.Eventually(t, "the order has failed", func() (bool, error) {
		op, _ := get(t, "go", &v1alpha1.VMOperation{})
		return op.Status.Phase == v1alpha1.MigrationFailed && op.Status.Class == "not implemented" &&
			strings.Contains(op.Status.Reason, "Migrate"), fmt.Errorf("%+v", op.Status)
	})
	mode(t, "order", v1alpha1.ModeHibernated)
	apitest.Eventually(t, "the VM says why it does not sleep", func() (bool, error) {
		vm, _ := get(t, "order", &v1alpha1.VirtualMachine{})
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && c.Reason == string(decide.ReasonEngineMissing) && strings.Contains(c.Message, "Hibernate") &&
			vm.Status.Phase == v1alpha1.VMRunning, fmt.Errorf("%+v", vm.Status)
	})
	remove(t, n, "order", "a", "order-g1-a0")
}
