//go:build integration

package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// A VM that wakes for a node that is full waits for it: its pod stays Pending, and says why. The operator binds no pod
// itself, and no other node gets the VM. Once there is room, it wakes there.
func TestWantedOnAFullNode(t *testing.T) {
	const waiting = 2 * time.Second // in which a pod that is forced would be bound
	w := newWorld(t)
	w.create("patient")
	w.wants("patient", `"operatingMode":"Hibernated"`)
	w.until("patient", "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && len(w.pods("patient")) == 0
	})
	w.fill("b")
	w.wants("patient", `"nodeName":"b","operatingMode":"Running"`)
	full := func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondCapacity)
		return c != nil && c.Status == "False" && c.Reason == string(decide.ReasonUnschedulable) && c.Message != ""
	}
	w.until("patient", "has no room", full)
	before := w.pods("patient")
	time.Sleep(waiting)
	w.until("patient", "has no room still", full)
	after := w.pods("patient")
	if len(before) != 1 || len(after) != 1 || before[0].UID != after[0].UID || after[0].Spec.NodeName != "" ||
		after[0].Status.Phase != corev1.PodPending {
		t.Errorf("the pods were %v, and are %v", before, after)
	}
	for _, node := range []string{"a", "b", "c"} {
		if got := w.is("default.patient", node); got == runs {
			t.Errorf("it runs on node %s", node)
		}
	}
	w.fill()
	w.running("patient", "b")
}

// A new spec is acknowledged before anything is done about it: the status has its generation first, and says that the
// VM moves after that.
func TestNewSpecIsAcknowledgedFirst(t *testing.T) {
	w := newWorld(t)
	w.create("told")
	events, err := w.api.Watch(t.Context(), &v1alpha1.VirtualMachineList{}, client.InNamespace("default"),
		client.MatchingFields{"metadata.name": "told"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	w.wants("told", `"nodeName":"b"`)
	w.running("told", "b")
	var said []string
	for ready := false; !ready; {
		select {
		case e := <-events.ResultChan():
			vm, ok := e.Object.(*v1alpha1.VirtualMachine)
			if !ok {
				t.Fatalf("the watch says %+v", e)
			}
			if vm.Spec.NodeName != "b" {
				continue
			}
			what := string(vm.Status.Phase)
			if vm.Status.ObservedGeneration < vm.Generation {
				what = "unseen"
			}
			said = append(said, what)
			ready = vm.Status.Phase == v1alpha1.VMRunning && vm.Status.Owner.Node == "b"
		case <-time.After(10 * time.Second):
			t.Fatalf("the watch says no more after %v", said)
		}
	}
	said = slices.Compact(said)
	if len(said) < 4 || said[0] != "unseen" || said[1] != string(v1alpha1.VMRunning) ||
		said[2] != string(v1alpha1.VMMigrating) || slices.Contains(said[1:], "unseen") {
		t.Errorf("the status was %v", said)
	}
}

// A VM that sleeps is to wake, and no node can run its template. It keeps its memory. Called off, it sleeps again; its
// next wake has the new template.
func TestWakeThatNoNodeRuns(t *testing.T) {
	w := newWorld(t)
	w.create("noroom")
	asleep := func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && vm.Status.Operation == nil && vm.Status.Owner.Digest == digest &&
			len(w.pods("noroom")) == 0
	}
	w.wants("noroom", `"operatingMode":"Hibernated"`)
	w.until("noroom", "sleeps", asleep)
	w.fill("a", "b", "c")
	w.wants("noroom", `"operatingMode":"Running","template":{"spec":{"nodeSelector":{"example.com/none":"x"}}}`)
	w.until("noroom", "says that no node runs it", func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondCapacity)
		return c != nil && c.Status == "False" && strings.Contains(c.Message, "call the operation off") &&
			vm.Status.Owner.Digest == digest
	})
	w.wants("noroom", `"operatingMode":"Hibernated","template":{"spec":{"nodeSelector":null}}`)
	w.until("noroom", "sleeps again", asleep)
	w.fill()
	w.wants("noroom", `"operatingMode":"Running"`)
	pod := w.running("noroom", "a")
	if len(pod.Spec.NodeSelector) > 0 || pod.Labels["godwit.dev/operation"] == "" {
		t.Errorf("it runs in a pod of %v with labels %v", pod.Spec.NodeSelector, pod.Labels)
	}
}
