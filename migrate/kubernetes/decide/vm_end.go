package decide

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// end is what a deleted VirtualMachine waits for.
func (o VM) end() Action {
	rec := o.Record
	lost := o.Engine && (o.Fenced || o.slept()) // nothing of it runs on its node
	if op := rec.GetOperation(); op != nil && !lost {
		switch {
		case !pods.Arriving(op) || op.GetCancelled():
			return wait(ReasonOperation, "operation "+op.GetId()+" ends first")
		case !o.Engine:
			return missing("to call operation " + op.GetId() + " off")
		}
		return Action{Do: OrderAbort, Operation: op.GetId()}
	}
	for i := range o.Pods {
		pod := &o.Pods[i]
		switch {
		case !metav1.IsControlledBy(pod, o.Object):
		case !o.Fenced || pod.Spec.NodeName != InHand(rec):
			return o.deletePod(pod)
		case !deletedAtOnce(pod): // no kubelet says that it has ended
			return Action{Do: DeletePod, Pod: pod, AtOnce: true}
		}
	}
	switch {
	case o.setLives() && (rec.GetOwner().GetNode() == "" || o.Fenced), rec == nil: // the next object has it
		return Action{Do: DropFinalizer}
	case lost: // and whatever of it is open
		giveUp := Action{Do: OrderGiveUp, Node: InHand(rec)}
		if !o.Fenced { // its node may be up all the same: the engine knows
			giveUp.After = releaseBound
		}
		return giveUp
	case rec.GetOwner().GetNode() != "":
		return wait(ReasonNodeSilent, fmt.Sprintf("node %s has not said yet that the VM has ended there",
			rec.GetOwner().GetNode()))
	}
	return Action{Do: RemoveRecord}
}

// deletedAtOnce reports whether nothing but a finalizer holds a pod any more.
func deletedAtOnce(pod *corev1.Pod) bool {
	grace := pod.DeletionGracePeriodSeconds
	return pod.DeletionTimestamp != nil && grace != nil && *grace == 0
}
