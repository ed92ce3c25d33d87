// Package pods makes the pods of VMs. Each pod of a VM comes from Make: of a boot, a wake, a move or a member of a set.
package pods

import (
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Labels of a pod. They are no annotations: a runtime hands those of godwit.dev to the shim, which refuses the ones
// that it does not know.
const (
	LabelVM         = "godwit.dev/vm"
	LabelRecordUID  = "godwit.dev/record-uid"
	LabelGeneration = "godwit.dev/generation" // that the VM has once the record names this pod
	LabelOperation  = "godwit.dev/operation"  // none: a boot
	LabelAttempt    = "godwit.dev/attempt"
	// LabelMember of a VirtualMachine is the member of the set that it was made as. Anybody may take it off.
	LabelMember = "godwit.dev/member"
)

const (
	// AnnotationVM tells the shim how the VM is called in the records.
	AnnotationVM = spec.AnnotationVM
	// AnnotationOnStop tells the shim what to do at a stop that was not ordered.
	AnnotationOnStop = spec.AnnotationOnStop
	OnStopHibernate  = spec.OnStopHibernate
	annotationEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// GateRunning is the readiness gate: True while the record names this pod.
const GateRunning corev1.PodConditionType = "godwit.dev/running"

// Intent is what the VM of a pod begins from.
type Intent string

// The intents.
const (
	Boot    Intent = "Boot"
	Restore Intent = "Restore" // from the snapshot of a wake
	Receive Intent = "Receive" // from the source of a move
)

// IntentOf is the one place that decides what a new pod of a VM begins from. A VM whose state is somewhere boots never.
func IntentOf(rec *nodev1.Record) (Intent, error) {
	op := rec.GetOperation()
	var err error
	switch {
	case rec == nil:
		err = fmt.Errorf("it has no record: %w", errdefs.ErrFailedPrecondition)
	case op.GetKind() == nodev1.Kind_KIND_WAKE && Arriving(op):
		return Restore, nil
	case op.GetKind() == nodev1.Kind_KIND_MIGRATE && Arriving(op):
		return Receive, nil
	case op != nil:
		err = fmt.Errorf("operation %s needs none: %w", op.GetId(), errdefs.ErrFailedPrecondition)
	case record.IsLost(rec):
		err = fmt.Errorf("its state is lost, and a boot would give that up: %w", errdefs.ErrFailedPrecondition)
	case rec.GetOwner().GetDigest() != "":
		err = fmt.Errorf("it sleeps in snapshot %s: order a wake: %w", rec.GetOwner().GetDigest(),
			errdefs.ErrFailedPrecondition)
	case rec.GetOwner().GetNode() != "":
		err = fmt.Errorf("node %s has it: %w", rec.GetOwner().GetNode(), errdefs.ErrFailedPrecondition)
	default:
		return Boot, nil
	}
	return "", fmt.Errorf("make a pod of VM %s: %w", rec.GetVm().GetId(), err)
}

// Arriving reports whether an operation still brings the VM to a destination.
func Arriving(op *nodev1.Operation) bool {
	switch op.GetPhase() {
	case nodev1.Phase_PHASE_PENDING, nodev1.Phase_PHASE_PREPARING, nodev1.Phase_PHASE_TRANSFERRING:
		return op.GetKind() == nodev1.Kind_KIND_WAKE || op.GetKind() == nodev1.Kind_KIND_MIGRATE
	}
	return false
}

// Name of the pod of one attempt. One that is made again is found.
func Name(vm string, generation uint64, attempt uint32) string {
	return fmt.Sprintf("%s-g%d-a%d", vm, generation, attempt)
}

// Generation is the one in the pod's labels; 0: it has none.
func Generation(pod *corev1.Pod) uint64 {
	n, err := strconv.ParseUint(pod.Labels[LabelGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Attempt is the one in the pod's labels.
func Attempt(pod *corev1.Pod) uint32 {
	n, err := strconv.ParseUint(pod.Labels[LabelAttempt], 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// Ended reports whether nothing of a pod runs any more.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Names reports whether a record names a pod as the one that the VM runs in. A boot that was tried again has claimed
// more than one generation, and is of the same pod: no other one is made while it is there.
func Names(rec *nodev1.Record, pod *corev1.Pod) bool {
	if node := rec.GetOwner().GetNode(); node == "" || node != pod.Spec.NodeName ||
		rec.GetUid() != pod.Labels[LabelRecordUID] {
		return false
	}
	if place := rec.GetPlace(); place != "" {
		return place == string(pod.UID)
	}
	booted := pod.Labels[LabelOperation] == ""
	return rec.GetGeneration() == Generation(pod) || booted && rec.GetGeneration() > Generation(pod)
}

// checkName refuses a VM whose name, or whose uid in the records, does not fit where it is needed.
func checkName(vm *v1alpha1.VirtualMachine, rec *nodev1.Record) error {
	if problems := validation.IsDNS1123Label(vm.Name); len(problems) > 0 {
		return fmt.Errorf("make a pod of VirtualMachine %s/%s: its name is a label and a host's name, so it must be one: "+
			"%v: %w", vm.Namespace, vm.Name, problems, errdefs.ErrInvalidArgument)
	}
	if problems := validation.IsValidLabelValue(rec.GetUid()); len(problems) > 0 {
		return fmt.Errorf("make a pod of VirtualMachine %s/%s: its record has uid %s, which is a label: %v: %w", vm.Namespace,
			vm.Name, rec.GetUid(), problems, errdefs.ErrInvalidArgument)
	}
	return nil
}
