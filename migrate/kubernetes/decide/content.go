package decide

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Content is what the node of a work order has observed of it.
type Content struct {
	Object  *v1alpha1.VMSnapshotContent
	Node    string
	Pod     *corev1.Pod       // under the name that the order has; nil: there is none
	Found   *nodev1.Operation // with the snapshot's uid as its id; nil: the records know none
	Running bool              // this process captures it
	Unread  error             // something of this could not be read
}

// NextContent decides what is done next of a work order. It begins no capture: a pod that is fit is promoted, and the
// pod's own events do.
func NextContent(o Content) Action {
	c := o.Object
	switch {
	case c.Spec.Source.NodeName != o.Node: // its label lies
		return Action{Do: None}
	case Final(c):
		return Action{Do: None}
	case o.Unread != nil:
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	case c.DeletionTimestamp != nil:
		if o.Found != nil && !transition.Settled(o.Found.GetPhase()) && !transition.Committed(o.Found.GetPhase()) &&
			!o.Found.GetCancelled() {
			return Action{Do: OrderAbort, Operation: o.Found.GetId()}
		}
		return Action{Do: None}
	case o.Running && o.Found != nil:
		return wait(ReasonOperation, "")
	case o.Running:
		return o.tried()
	case o.Found != nil: // it has begun: what is published is told, whatever became of its pod
		return Action{Do: Capture, Content: c}
	}
	if why, message := o.invalid(); why != "" {
		return Action{Do: TellFailed, Content: c, Waits: why, Message: message, Refused: true}
	}
	if o.Pod.Labels[LabelEligible] == "" {
		return Action{Do: Promote, Pod: o.Pod}
	}
	if !ready(o.Pod) {
		return wait(ReasonPodNotReady, "pod "+o.Pod.Name+" is not Ready")
	}
	return o.tried()
}

// tried is an order that is given to the node's godwitd now and then. A refusal of it stands until it is taken.
func (o Content) tried() Action {
	said := meta.FindStatusCondition(o.Object.Status.Conditions, CondReady)
	if said != nil && said.Reason == string(ReasonRefused) {
		return wait(ReasonRefused, said.Message)
	}
	return wait(ReasonOperation, "")
}

// invalid says why an order can never be carried out.
func (o Content) invalid() (Reason, string) {
	c, ref := o.Object, o.Object.Spec.Source.PodRef
	why, message := source(o.Pod, ref.Namespace, ref.Name, ref.UID)
	if o.Pod != nil && why != ReasonStaleSource && captureOnly(o.Pod.Labels) {
		if failed := failedTask(o.Pod); failed != "" {
			return ReasonTaskFailed, failed
		}
	}
	if why != "" {
		return why, message
	}
	switch {
	case c.Spec.SnapshotRef.Namespace != ref.Namespace:
		return ReasonInvalid, "its pod is in another namespace than its VMSnapshot"
	case o.Pod.Spec.NodeName != o.Node:
		return ReasonStaleSource, fmt.Sprintf("pod %s is at node %q", o.Pod.Name, o.Pod.Spec.NodeName)
	case c.Labels[pods.LabelVM] == "" || c.Labels[pods.LabelRecordUID] == "":
		return ReasonInvalid, "it names no VM: labels " + pods.LabelVM + " and " + pods.LabelRecordUID
	}
	return "", ""
}

// Promoted is what the node has observed of a pod that may be captured.
type Promoted struct {
	Pod    *corev1.Pod
	Node   string
	Orders []v1alpha1.VMSnapshotContent // that name the pod
	Unread error
}

// NextCapture decides whether a pod is captured, and by which of its orders: the oldest one, whichever event told.
func NextCapture(o Promoted) Action {
	if o.Unread != nil {
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	}
	if o.Pod.Labels[LabelEligible] == "" {
		return Action{Do: None}
	}
	var oldest *v1alpha1.VMSnapshotContent
	for i := range o.Orders {
		c := &o.Orders[i]
		if Final(c) || c.DeletionTimestamp != nil || c.Spec.Source.NodeName != o.Node {
			continue
		}
		if why, _ := (Content{Object: c, Node: o.Node, Pod: o.Pod}).invalid(); why != "" {
			continue
		}
		if oldest == nil || olderOrder(c, oldest) < 0 {
			oldest = c
		}
	}
	switch {
	case oldest == nil:
		return Action{Do: Demote, Pod: o.Pod}
	case !ready(o.Pod):
		return wait(ReasonPodNotReady, "pod "+o.Pod.Name+" is not Ready")
	}
	return Action{Do: Capture, Content: oldest}
}

// NextReport decides what is said of a capture. Who has lost the claim calls it off, and says nothing.
func NextReport(found *nodev1.Operation, held bool) Action {
	settled := transition.Settled(found.GetPhase())
	switch {
	case !held && !settled && !transition.Committed(found.GetPhase()):
		return Action{Do: OrderAbort, Operation: found.GetId()}
	case !held || !settled:
		return wait(ReasonOperation, "")
	case found.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED && found.GetDigest() != "":
		return Action{Do: TellReady, Operation: found.GetId()}
	case found.GetCancelled():
		return Action{Do: TellFailed, Waits: ReasonCancelled, Message: found.GetReason(), Refused: true}
	}
	return Action{Do: TellFailed, Waits: ReasonCaptureFailed, Message: found.GetReason(), Refused: true}
}

// ContentStatus is what the status of a work order says once next is done. found is of a capture that has settled.
func ContentStatus(old v1alpha1.VMSnapshotContentStatus, generation int64, next Action, found *nodev1.Operation,
	bytes uint64) v1alpha1.VMSnapshotContentStatus {
	s := *old.DeepCopy()
	switch {
	case next.Do == TellReady:
		s.Digest, s.Repository, s.Receipt = found.GetDigest(), found.GetRepository(), found.GetReceipt()
		s.Generation, s.Bytes = int64(found.GetGeneration()), int64(bytes)
		setCondition(&s.Conditions, generation, CondReady, metav1.ConditionTrue, ReasonSnapshotReady, "")
	case next.Do == TellFailed:
		failed(&s.Conditions, generation, next.Waits, next.Message)
	case next.Waits != "":
		setCondition(&s.Conditions, generation, CondReady, metav1.ConditionFalse, next.Waits, next.Message)
	}
	if equality.Semantic.DeepEqual(s, old) {
		return old
	}
	return s
}

// Orders reports whether a work order is for this checkpoint of a node, and says where it goes.
func Orders(c *v1alpha1.VMSnapshotContent, rec *nodev1.Record, op *nodev1.Operation, node string) bool {
	return c.DeletionTimestamp == nil && c.Spec.SnapshotRef.UID == op.GetId() && c.Spec.Source.NodeName == node &&
		c.Spec.Repository != "" && c.Spec.Repository == op.GetPrefix() &&
		c.Labels[pods.LabelRecordUID] == rec.GetUid() &&
		c.Spec.Source.PodRef.Namespace+"."+c.Labels[pods.LabelVM] == rec.GetVm().GetId()
}
