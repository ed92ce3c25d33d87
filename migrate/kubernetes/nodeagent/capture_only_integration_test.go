//go:build integration

package nodeagent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// podIs writes the status of a pod, as its kubelet does.
func podIs(t *testing.T, name string, change func(*corev1.PodStatus)) {
	t.Helper()
	apitest.Eventually(t, "the status of pod "+name+" is written", func() (bool, error) {
		pod, _ := read(t, name, &corev1.Pod{})
		change(&pod.Status)
		err := api().Status().Update(t.Context(), pod)
		return err == nil, err
	})
}

// hasEvent waits for an event of an object.
func hasEvent(t *testing.T, kind, name, reason, note string) {
	t.Helper()
	apitest.Eventually(t, fmt.Sprintf("%s %s has event %s", kind, name, reason), func() (bool, error) {
		all := &eventsv1.EventList{}
		err := api().List(t.Context(), all, client.InNamespace("default"))
		for _, e := range all.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name && e.Reason == reason && strings.Contains(e.Note, note) {
				return true, nil
			}
		}
		return false, errors.Join(err, fmt.Errorf("%d events", len(all.Items)))
	})
}

func whyFailed(s *v1alpha1.VMSnapshot) string {
	return meta.FindStatusCondition(s.Status.Conditions, decide.CondFailed).Message
}

// A container of a VM that is there for a snapshot alone fails before the snapshot: the snapshot has failed, the other
// containers end with the VM, and events say why.
func TestTaskOfACaptureOnlyPod(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	startAgent(t, g)
	pod := vmRuns(t, g, "warm", false, func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.Template.Labels = map[string]string{decide.LabelCaptureOnly: "true"}
	})
	create(t, newSnapshot("warm", "warm"))
	snapshotIs(t, "warm", decide.CondReady, decide.ReasonPodNotReady)
	podIs(t, pod.Name, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "m:1", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}}}}
	})
	said := snapshotIs(t, "warm", decide.CondFailed, decide.ReasonTaskFailed)
	if why := whyFailed(said); !strings.Contains(why, "exit code 3") {
		t.Errorf("it says %q", why)
	}
	hasEvent(t, "VMSnapshot", "warm", "SnapshotFailed", "exit code 3")
	hasEvent(t, "VirtualMachine", "warm", "TaskFailed", "exit code 3")
	apitest.Eventually(t, "the VM is stopped, and its pod ends", func() (bool, error) {
		vm, _ := read(t, "warm", &v1alpha1.VirtualMachine{})
		pod, there := read(t, pod.Name, &corev1.Pod{})
		return vm.Spec.OperatingMode == v1alpha1.ModeStopped && (!there || pod.DeletionTimestamp != nil),
			fmt.Errorf("mode %s, pod %t", vm.Spec.OperatingMode, there)
	})
	if begun := g.begun(); len(begun) != 0 {
		t.Errorf("captures %v", begun)
	}
}

// A capture has no deadline of its own: it waits for its pod. The deadline of the pod ends the pod, and so the snapshot
// fails, with the kubelet's reason.
func TestDeadlineIsThePods(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	startAgent(t, g)
	pod := vmRuns(t, g, "deadline", false)
	create(t, newSnapshot("deadline", "deadline"))
	snapshotIs(t, "deadline", decide.CondReady, decide.ReasonPodNotReady)
	podIs(t, pod.Name, func(s *corev1.PodStatus) { s.Phase, s.Reason = corev1.PodFailed, "DeadlineExceeded" })
	said := snapshotIs(t, "deadline", decide.CondFailed, decide.ReasonSourceGone)
	if why := whyFailed(said); !strings.Contains(why, "DeadlineExceeded") {
		t.Errorf("it says %q", why)
	}
}

// What a node says climbs level by level: the order, then the VMSnapshot, and that only as far as the records say so
// too. Nothing is looked at again by time here: each level has a watch.
func TestStatusClimbs(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	vmRuns(t, g, "climb", true)
	snap := newSnapshot("climb", "climb")
	create(t, snap)
	snapshotIs(t, "climb", decide.CondReady, decide.ReasonOperation)
	node := clientOf(as("godwit-node"))
	says := func(change func(*v1alpha1.VMSnapshotContentStatus)) {
		apitest.Eventually(t, "the node writes the status of its order", func() (bool, error) {
			c, _ := read(t, decide.OrderName(snap.UID), &v1alpha1.VMSnapshotContent{})
			change(&c.Status)
			err := node.Status().Update(t.Context(), c)
			return err == nil, err
		})
	}
	says(func(s *v1alpha1.VMSnapshotContentStatus) {
		s.Digest = "sha256:" + strings.Repeat("1", 64)
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: decide.CondReady, Status: metav1.ConditionTrue,
			Reason: string(decide.ReasonSnapshotReady)})
	})
	skipped := snapshotIs(t, "climb", decide.CondReady, decide.ReasonNotListed)
	if meta.IsStatusConditionTrue(skipped.Status.Conditions, decide.CondReady) || skipped.Status.Digest != "" {
		t.Errorf("no record lists it: %+v", skipped.Status)
	}
	says(func(s *v1alpha1.VMSnapshotContentStatus) { *s = v1alpha1.VMSnapshotContentStatus{} })
	startAgent(t, g)
	ready := readySnapshot(t, "climb")
	hasEvent(t, "VMSnapshot", "climb", "SnapshotCreated", ready.Status.Digest)
	apitest.Eventually(t, "the VM says so", func() (bool, error) {
		vm, _ := read(t, "climb", &v1alpha1.VirtualMachine{})
		last := vm.Status.LastSnapshot
		return last != nil && last.Digest == ready.Status.Digest, fmt.Errorf("%+v", last)
	})
}
