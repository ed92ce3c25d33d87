//go:build integration

package control

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// lives is a VM that boots on node a and sleeps. It wakes on node b, since a is full, and moves to node c by its
// nodeName.
func (w *world) lives(name string) {
	w.t.Helper()
	w.create(name)
	w.wants(name, `"operatingMode":"Hibernated"`)
	w.until(name, "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && vm.Status.Owner.Digest == digest && len(w.pods(name)) == 0
	})
	w.wants(name, `"template":{"metadata":{"labels":{"changed":"yes"}}}`)
	w.until(name, "says that its template has changed", drifts)
	w.fill("a")
	w.wants(name, `"operatingMode":"Running"`)
	woken := w.running(name, "b")
	w.fill()
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed("default." + name)})
	if err != nil || rec.GetPlace() != string(woken.UID) || woken.Labels[pods.LabelOperation] == "" ||
		woken.Spec.Containers[0].Image != image {
		w.t.Errorf("VM %s is in place %q: %v; its pod %s has labels %v and image %s", name, rec.GetPlace(), err, woken.UID,
			woken.Labels, woken.Spec.Containers[0].Image)
	}
	w.restored(woken, decide.ReasonWoken)
	w.until(name, "woke by the template of its boot, and says so", drifts)
	w.wants(name, `"nodeName":"c"`)
	w.restored(w.running(name, "c"), decide.ReasonMoved)
	apitest.Eventually(w.t, "the orders of VM "+name+" have succeeded", func() (bool, error) {
		kinds := map[v1alpha1.OperationKind]int{}
		orders := w.orders(name)
		for _, op := range orders {
			if op.Status.Phase == v1alpha1.MigrationSucceeded {
				kinds[op.Spec.Kind]++
			}
		}
		return fmt.Sprint(kinds) == "map[Hibernate:1 Migrate:1 Wake:1]", fmt.Errorf("%v, of %d", kinds, len(orders))
	})
}

func drifts(vm *v1alpha1.VirtualMachine) bool {
	return meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondTemplateDrift)
}

// restored waits until a pod says that its VM came into it, and how.
func (w *world) restored(pod *corev1.Pod, how decide.Reason) {
	w.t.Helper()
	apitest.Eventually(w.t, fmt.Sprintf("pod %s is restored: %s", pod.Name, how), func() (bool, error) {
		now := &corev1.Pod{}
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			return false, err
		}
		return slices.ContainsFunc(now.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == pods.CondRestored && c.Status == corev1.ConditionTrue && c.Reason == string(how)
		}), fmt.Errorf("%v", now.Status.Conditions)
	})
}

// told waits for events of a VM.
func (w *world) told(name string, reasons ...string) {
	w.t.Helper()
	apitest.Eventually(w.t, fmt.Sprintf("VM %s has the events %v", name, reasons), func() (bool, error) {
		list := &eventsv1.EventList{}
		if err := w.api.List(w.t.Context(), list, client.InNamespace("default")); err != nil {
			return false, err
		}
		var has []string
		for _, e := range list.Items {
			if e.Regarding.Kind == "VirtualMachine" && e.Regarding.Name == name {
				has = append(has, e.Reason)
			}
		}
		for _, want := range reasons {
			if !slices.Contains(has, want) {
				return false, fmt.Errorf("there are %v", has)
			}
		}
		return true, nil
	})
}

func (w *world) orders(name string) (all []v1alpha1.VMOperation) {
	w.t.Helper()
	list := &v1alpha1.VMOperationList{}
	if err := w.api.List(w.t.Context(), list, client.InNamespace("default")); err != nil {
		w.t.Fatal(err)
	}
	for _, op := range list.Items {
		if op.Spec.VMRef.Name == name {
			all = append(all, op)
		}
	}
	return all
}

// A VM sleeps, wakes where the scheduler puts its pod, and moves to the node that it is wanted on.
func TestObjectsMeetTheEngine(t *testing.T) {
	w := newWorld(t)
	w.lives("life")
	w.told("life", "HibernateSucceeded", "WakeSucceeded", "MigrateSucceeded", "RestoreRequested", "RestoreSucceeded")
}

// Each third call of a node fails, each fourth answer is lost. Of what the operator writes, each fifth request does not
// arrive, and each seventh answer is lost.
func TestObjectsFailNowAndThen(t *testing.T) {
	newWorld(t, func(w *world) { w.faulty = true }).lives("faulty")
}

// An operator is killed after every few writes, before it hears the answer to the last one, until all is done.
func TestOperatorKilledAtEachWrite(t *testing.T) {
	for _, every := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint("after ", every), func(t *testing.T) {
			w := newWorld(t, func(w *world) { w.every = every })
			w.lives(fmt.Sprint("killed-", every))
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.kills < 4 {
				t.Errorf("%d operators were killed", w.kills)
			}
		})
	}
}

// A VM that is wanted back while its pod waits for the scheduler, or while it is sent, runs on where it is. A pod
// without a node is not deleted meanwhile.
func TestRetargetBackMidway(t *testing.T) {
	w := newWorld(t)
	w.create("back")
	w.fill("b")
	w.wants("back", `"nodeName":"b"`)
	waits := func(uid string) string {
		var got string
		apitest.Eventually(t, "the pod of the move waits", func() (bool, error) {
			for _, pod := range w.pods("back") {
				if pod.Labels[pods.LabelOperation] != "" && pod.Spec.NodeName == "" {
					got = string(pod.UID)
				}
			}
			return got != "", nil
		})
		if uid != "" && got != uid {
			t.Errorf("the pod without a node was made again: %s, then %s", uid, got)
		}
		return got
	}
	first := waits("")
	time.Sleep(2 * time.Second)
	waits(first)
	w.wants("back", `"nodeName":"a"`)
	w.running("back", "a")

	w.mu.Lock()
	w.full, w.slow = nil, 2*time.Second
	w.mu.Unlock()
	w.wants("back", `"nodeName":"b"`)
	w.until("back", "is sent", func(*v1alpha1.VirtualMachine) bool {
		rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default.back")})
		return err == nil && rec.GetOperation().GetPhase() == nodev1.Phase_PHASE_TRANSFERRING
	})
	w.wants("back", `"nodeName":"a"`)
	w.running("back", "a")
	apitest.Eventually(t, "each order says that it was aborted", func() (bool, error) {
		for _, op := range w.orders("back") {
			if op.Status.Phase != v1alpha1.MigrationFailed || op.Status.Step != v1alpha1.RecordAborted {
				return false, fmt.Errorf("order %s is %s, %s", op.Name, op.Status.Phase, op.Status.Step)
			}
		}
		return true, nil
	})
}

// nodeName is cleared while the source is gone and the pod of the wake finds no room: the next pod has the intent, and
// no affinity.
func TestClearNodeNameWhileAWakeWaits(t *testing.T) {
	w := newWorld(t)
	w.create("clear")
	w.wants("clear", `"operatingMode":"Hibernated"`)
	w.until("clear", "sleeps", func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Phase == v1alpha1.VMHibernated })
	w.fill("b")
	w.wants("clear", `"operatingMode":"Running","nodeName":"b"`)
	apitest.Eventually(t, "the pod waits for node b", func() (bool, error) {
		all := w.pods("clear")
		return len(all) == 1 && all[0].Spec.NodeName == "" && all[0].Spec.Affinity != nil, nil
	})
	w.wants("clear", `"nodeName":null`)
	pod := w.running("clear", "a")
	if pod.Spec.Affinity != nil || pod.Labels[pods.LabelOperation] == "" {
		t.Errorf("affinity %v, labels %v", pod.Spec.Affinity, pod.Labels)
	}
}

// A pod that is deleted by hand while it waits for the scheduler is made again. One that has its name, and is of
// somebody else, is waited for.
func TestPodDeletedByHand(t *testing.T) {
	w := newWorld(t)
	w.create("hand")
	w.fill("b", "c")
	squatter := &corev1.Pod{}
	squatter.Name, squatter.Namespace = "hand-g2-a1", "default"
	squatter.Spec.Containers = []corev1.Container{{Name: "x", Image: "x"}}
	if err := w.api.Create(t.Context(), squatter); err != nil {
		t.Fatal(err)
	}
	w.wants("hand", `"nodeName":"b"`)
	w.until("hand", "moves", func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Phase == v1alpha1.VMMigrating })
	time.Sleep(time.Second)
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(squatter), squatter); err != nil {
		t.Fatalf("somebody's pod: %v", err)
	}
	w.gone(squatter)
	var first corev1.Pod
	made := func() (bool, error) {
		for _, pod := range w.pods("hand") {
			if pod.Labels[pods.LabelOperation] != "" && pod.UID != first.UID {
				first = pod
				return true, nil
			}
		}
		return false, nil
	}
	apitest.Eventually(t, "the pod of the move is made", made)
	w.gone(first.DeepCopy())
	apitest.Eventually(t, "the pod of the move is made again", made)
	w.fill()
	w.running("hand", "b")
}
