package decide

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// LabelCaptureOnly of a VirtualMachine's template says that the VM is there for a snapshot alone. If one of its
// containers fails before there is one, the snapshot has failed, and the VM is stopped.
const LabelCaptureOnly = "godwit.dev/capture-only"

// ReasonTaskFailed is of a snapshot that will never be taken, as a container of its VM has failed before.
const ReasonTaskFailed Reason = "TaskFailed"

func captureOnly(labels map[string]string) bool { return labels[LabelCaptureOnly] == "true" }

// failedTask says which container of a pod has ended by itself with another exit code than 0; empty: none has. In a pod
// that is ended from outside each container may: by a deletion, an eviction, a deadline or a shutdown.
func failedTask(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || pod.Status.Reason != "" || isTrue(pod, corev1.DisruptionTarget) {
		return ""
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if end != nil && end.ExitCode != 0 {
				return fmt.Sprintf("container %s of pod %s has ended with exit code %d", c.Name, pod.Name, end.ExitCode)
			}
		}
	}
	return ""
}

// failedAlone stops a VM that is there for a snapshot alone, if a container of it has failed. A VM that has a snapshot,
// or that went on with its memory, has more to lose than that.
func (o VM) failedAlone(pod *corev1.Pod) Action {
	if !captureOnly(o.Object.Spec.Template.Labels) || Mode(o.Object) != v1alpha1.ModeRunning ||
		pod.Labels[pods.LabelOperation] != "" || len(o.Record.GetSnapshots()) > 0 ||
		len(o.Record.GetSpent()) > 0 || o.Record.GetBase() != "" {
		return Action{Do: None}
	}
	if why := failedTask(pod); why != "" {
		return Action{Do: StopVM, Waits: ReasonTaskFailed, Message: why}
	}
	return Action{Do: None}
}

// forgets ends the pod whose failure has stopped the VM: what is wished later does not depend on it.
func (o VM) forgets(own []corev1.Pod) Action {
	if last := newest(own); last != nil && captureOnly(o.Object.Spec.Template.Labels) && failedTask(last) != "" {
		return o.deletePod(last)
	}
	return Action{Do: None}
}
