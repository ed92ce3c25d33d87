package decide

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Resolve is what was observed of a pod whose sandbox is created, uncached.
type Resolve struct {
	Node  string // that asks, by its certificate
	Asked *nodev1.Pod
	Named string // what the pod says that its VM is called in the records; empty: it gives it no name

	Pod    *corev1.Pod                 // of that uid; nil: the API server has none
	VM     *v1alpha1.VirtualMachine    // of the name that the pod says; nil: there is none
	Set    *v1alpha1.VirtualMachineSet // that the VM may be a member of; nil: none
	Record *nodev1.Record              // of that name; nil: there is none

	Sandbox *Sandbox            // that the pod says controls it; nil: there is none
	Noted   string              // the name of the Sandbox, by the record
	Had     bool                // it is written down, elsewhere than in the record, that there was one of the Sandbox
	Closed  []*nodev1.Operation // of the record, the oldest first
	Fenced  bool                // somebody vouches that the node which has the VM (InHand) runs nothing any more
	Now     time.Time
}

// refused is why a pod is not the VM that it names.
func (o Resolve) refused(class error, format string, args ...any) error {
	return fmt.Errorf("pod %s/%s (uid %s) as VM %s: %s: %w", o.Asked.GetNamespace(), o.Asked.GetName(), o.Asked.GetUid(),
		o.Named, fmt.Sprintf(format, args...), class)
}

// Resolved is which VM a pod is.
type Resolved struct {
	UID   string        // of its record; empty: it is of no VM that is an object
	Grace time.Duration // 0: it ends as any pod does
}

// VMOwner is the VirtualMachine that made a pod; nil: none did.
func VMOwner(pod *corev1.Pod) *metav1.OwnerReference {
	if pod == nil {
		return nil
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "VirtualMachine" || owner.APIVersion != v1alpha1.GroupVersion.String() {
		return nil
	}
	return owner
}

// NextResolve decides which VM a pod is. Its object says so, and the record: never its annotations.
func NextResolve(o Resolve) (Resolved, error) {
	fail := func(class error, format string, args ...any) (Resolved, error) {
		return Resolved{}, o.refused(class, format, args...)
	}
	owner := VMOwner(o.Pod)
	switch {
	case o.Pod != nil && o.Pod.Spec.NodeName != o.Node:
		return fail(errdefs.ErrPermissionDenied, "it is bound to node %q, and node %s asks", o.Pod.Spec.NodeName, o.Node)
	case owner == nil && pods.IsSandboxRecord(o.Named):
		return fail(errdefs.ErrPermissionDenied, "such names are of VMs of Sandboxes, and the pod is of none: leave "+
			"annotation %s out, or give another name", pods.AnnotationVM)
	case owner == nil && o.VM != nil:
		return fail(errdefs.ErrPermissionDenied, "that is VirtualMachine %s, and the pod is none of its pods: leave "+
			"annotation %s out, or give another name", o.VM.Name, pods.AnnotationVM)
	case owner == nil && o.Record != nil && o.Record.GetMadeBy() == "": // no node made it
		return fail(errdefs.ErrPermissionDenied, "that was VirtualMachine with uid %s, and the pod is none of its pods: "+
			"leave annotation %s out, or give another name", o.Record.GetUid(), pods.AnnotationVM)
	case owner == nil:
		return Resolved{}, nil
	case o.Pod.Spec.RuntimeClassName == nil:
		return fail(errdefs.ErrPermissionDenied, "its object has no runtimeClassName")
	case o.VM == nil || o.VM.UID != owner.UID:
		return fail(errdefs.ErrFailedPrecondition, "it is of VirtualMachine %s with uid %s, which is gone or has another "+
			"name: delete the pod", owner.Name, owner.UID)
	case !pods.Has(o.VM, o.Set, o.Record):
		return fail(errdefs.ErrFailedPrecondition, "VMRecord %s is not of VirtualMachine %s with uid %s: see kubectl "+
			"describe gvm %s", o.Named, o.VM.Name, o.VM.UID, o.VM.Name)
	case o.Pod.Labels[pods.LabelRecordUID] != o.Record.GetUid(): // only the operator sets that label
		return fail(errdefs.ErrPermissionDenied, "the operator has not made it: its label %s is %q, and the record has "+
			"uid %s", pods.LabelRecordUID, o.Pod.Labels[pods.LabelRecordUID], o.Record.GetUid())
	case o.Record.GetOwner().GetDigest() != "" && o.Record.GetOperation() == nil:
		return fail(errdefs.ErrFailedPrecondition, "the VM sleeps, and no wake is ordered: set operatingMode Running")
	}
	return o.isVM(), nil
}

// BootsIn reports whether the VM of a record may boot in a pod at a node. The operator alone sets the labels, and the
// scheduler the node. A boot that is tried again has claimed more than one generation.
func BootsIn(rec *nodev1.Record, pod *corev1.Pod, node string) bool {
	return VMOwner(pod) != nil && pod.Spec.NodeName == node && pod.Labels[pods.LabelRecordUID] == rec.GetUid() &&
		pod.Labels[pods.LabelOperation] == "" && pods.Generation(pod) <= rec.GetGeneration()+1 && !pods.Ended(pod) &&
		pod.DeletionTimestamp == nil
}

// onStop is what a pod has to end whose VM hibernates at a stop.
func onStop(pod *corev1.Pod) time.Duration {
	seconds := pod.Spec.TerminationGracePeriodSeconds
	if pod.Annotations[pods.AnnotationOnStop] != pods.OnStopHibernate || seconds == nil {
		return 0
	}
	return time.Duration(*seconds) * time.Second
}
