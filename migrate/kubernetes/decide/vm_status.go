package decide

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Types of conditions.
const (
	CondReady          = "Ready"
	CondProgressing    = "Progressing"
	CondHibernated     = "Hibernated"
	CondMovable        = "Movable"
	CondCapacity       = "CapacityAvailable"
	CondCleanupPending = "CleanupPending"
	CondLost           = "Lost"
	CondElsewhere      = "MembersElsewhere"
	CondTemplateDrift  = "TemplateDrift"
)

// VMStatus is what the status says of what was observed, and of what is done next. It is a copy: what a hand wrote
// there is gone.
func VMStatus(o VM, next Action) v1alpha1.VirtualMachineStatus {
	rec, old := o.Record, o.Object.Status
	s := v1alpha1.VirtualMachineStatus{ObservedGeneration: o.Object.Generation, Conditions: known(old.Conditions)}
	if o.Unread != nil { // what is not known is not denied
		s = *old.DeepCopy()
		s.ObservedGeneration = o.Object.Generation
		set(&s, CondReady, metav1.ConditionUnknown, ReasonRecordsUnavailable, o.Unread.Error())
		set(&s, CondProgressing, metav1.ConditionFalse, ReasonRecordsUnavailable, o.Unread.Error())
		return s
	}
	pod := o.shown()
	if pod != nil {
		s.Pod = &v1alpha1.PodRef{Name: pod.Name, UID: string(pod.UID)}
		for _, ip := range pod.Status.PodIPs {
			s.Addresses = append(s.Addresses, ip.IP)
		}
	}
	if o.mine() {
		s.RecordUID, s.Generation = rec.GetUid(), int64(rec.GetGeneration())
		s.Owner = v1alpha1.VMOwner{Node: rec.GetOwner().GetNode(), Digest: rec.GetOwner().GetDigest()}
		if op := rec.GetOperation(); op != nil {
			s.Operation = &v1alpha1.OperationRef{ID: op.GetId(), Kind: phases.Kinds[op.GetKind()]}
			if order := o.orderOf(op.GetId()); order != nil {
				s.Operation.Name = order.Name
			}
		}
		if n := len(rec.GetSnapshots()); n > 0 {
			last := rec.GetSnapshots()[n-1]
			s.LastSnapshot = &v1alpha1.SnapshotStatus{Digest: last.GetDigest(), Time: unix(last.GetCreatedUnixNano())}
		}
	} else if o.hadState() { // what the record said last is all that is known
		s.RecordUID, s.Generation, s.Owner, s.LastSnapshot = old.RecordUID, old.Generation, old.Owner, old.LastSnapshot
	}
	s.Phase = o.phase(pod, next)
	o.conditions(&s, pod, next)
	return s
}

// known copies the conditions that are ours: only the times of their last change are taken over.
func known(old []metav1.Condition) (all []metav1.Condition) {
	for _, c := range old {
		switch c.Type {
		case CondReady, CondProgressing, CondHibernated, CondMovable, CondCapacity, CondCleanupPending, CondLost,
			CondTemplateDrift:
			all = append(all, c)
		}
	}
	return all
}

// shown is the pod that the VM runs in, else the one that it comes to.
func (o VM) shown() (pod *corev1.Pod) {
	own, _ := o.own()
	for i := range own {
		if o.names(&own[i]) {
			return &own[i]
		}
		if p := &own[i]; pod == nil || pods.Generation(pod) < pods.Generation(p) {
			pod = p
		}
	}
	return pod
}

func (o VM) phase(pod *corev1.Pod, next Action) v1alpha1.VMPhase {
	rec := o.Record
	switch {
	case o.Object.DeletionTimestamp != nil:
		return v1alpha1.VMStopping
	case rec != nil && !o.mine():
		return v1alpha1.VMPending
	case record.IsLost(rec), o.hadState():
		return v1alpha1.VMLost
	case rec.GetOperation().GetKind() == nodev1.Kind_KIND_HIBERNATE:
		return v1alpha1.VMHibernating
	case rec.GetOperation().GetKind() == nodev1.Kind_KIND_WAKE:
		return v1alpha1.VMWaking
	case rec.GetOperation().GetKind() == nodev1.Kind_KIND_MIGRATE:
		return v1alpha1.VMMigrating
	case rec.GetOwner().GetDigest() != "":
		return v1alpha1.VMHibernated
	case rec.GetOwner().GetNode() != "" && Mode(o.Object) == v1alpha1.ModeStopped:
		return v1alpha1.VMStopping
	case rec.GetOwner().GetNode() != "" && pod != nil && o.names(pod) && pod.Status.Phase == corev1.PodRunning:
		return v1alpha1.VMRunning
	case rec.GetOwner().GetNode() != "":
		return v1alpha1.VMStarting
	}
	return o.restPhase(pod, next)
}

// restPhase is that of a VM without an owner.
func (o VM) restPhase(pod *corev1.Pod, next Action) v1alpha1.VMPhase {
	switch {
	case next.Waits == ReasonEnded && pod != nil && pod.Status.Phase == corev1.PodFailed:
		return v1alpha1.VMFailed
	case next.Waits == ReasonEnded:
		return v1alpha1.VMSucceeded
	case pod != nil && !pods.Ended(pod) && pod.Spec.NodeName == "":
		return v1alpha1.VMScheduling
	case pod != nil && !pods.Ended(pod):
		return v1alpha1.VMStarting
	case Mode(o.Object) != v1alpha1.ModeRunning:
		return v1alpha1.VMStopped
	}
	return v1alpha1.VMPending
}

func (o VM) conditions(s *v1alpha1.VirtualMachineStatus, pod *corev1.Pod, next Action) {
	rec := o.Record
	switch {
	case s.Phase == v1alpha1.VMRunning && pod != nil && Ready(pod):
		set(s, CondReady, metav1.ConditionTrue, ReasonRunning, "")
	case next.Waits == ReasonNodeUnreachable, next.Waits == ReasonNodeLost:
		set(s, CondReady, metav1.ConditionUnknown, next.Waits, next.Message)
	default:
		set(s, CondReady, metav1.ConditionFalse, o.unready(s.Phase, next), "")
	}
	switch {
	case next.Refused:
		set(s, CondProgressing, metav1.ConditionFalse, next.Waits, next.Message)
	case rec.GetOperation() != nil:
		set(s, CondProgressing, metav1.ConditionTrue, Reason(phases.Kinds[rec.GetOperation().GetKind()]), "")
	case next.Waits != "" && next.Waits != ReasonEnded:
		set(s, CondProgressing, metav1.ConditionTrue, next.Waits, next.Message)
	default:
		meta.RemoveStatusCondition(&s.Conditions, CondProgressing)
	}
	if rec.GetOwner().GetDigest() != "" {
		set(s, CondHibernated, metav1.ConditionTrue, ReasonCommitted, "")
	} else {
		set(s, CondHibernated, metav1.ConditionFalse, ReasonNotHibernated, "")
	}
	if o.Engine {
		meta.RemoveStatusCondition(&s.Conditions, CondMovable)
	} else {
		set(s, CondMovable, metav1.ConditionFalse, ReasonEngineMissing, "this operator has no engine for operations yet")
	}
	o.capacity(s, pod)
	o.drift(s)
	o.ends(s, next)
}

// drift tells of a template that the VM does not run. Nothing is changed by that: not what runs, and not what sleeps.
func (o VM) drift(s *v1alpha1.VirtualMachineStatus) {
	ran := o.template()
	wanted, err := pods.Template(o.Object)
	switch {
	case ran == "" || err != nil || s.Owner == (v1alpha1.VMOwner{}): // it has no state, and boots from the template
		meta.RemoveStatusCondition(&s.Conditions, CondTemplateDrift)
	case ran == wanted:
		set(s, CondTemplateDrift, metav1.ConditionFalse, ReasonTemplateCurrent, "")
	default:
		set(s, CondTemplateDrift, metav1.ConditionTrue, ReasonTemplateChanged, "the VM booted from another template. This "+
			"one counts from its next boot: set operatingMode Stopped while it runs, then Running. That gives its memory up")
	}
}

// capacity says whether there is room for the pod.
func (o VM) capacity(s *v1alpha1.VirtualMachineStatus, pod *corev1.Pod) {
	switch {
	case pod != nil && pod.Spec.NodeName != "":
		set(s, CondCapacity, metav1.ConditionTrue, "Placed", "")
	case pod != nil && !pods.Ended(pod) && Unscheduled(pod) != "":
		set(s, CondCapacity, metav1.ConditionFalse, ReasonUnschedulable, Unscheduled(pod)+". Make room, or "+remedy(pod))
	default:
		meta.RemoveStatusCondition(&s.Conditions, CondCapacity)
	}
}

// remedy is what an edit may do about a pod that no node takes. The VM of a wake or a move loses nothing by that.
func remedy(pod *corev1.Pod) string {
	if pod.Labels[pods.LabelOperation] == "" {
		return "edit spec.template: the pod is made anew"
	}
	return "edit spec.template, and call the operation off: the next one has the new template"
}

// Unplaced is why no node takes the pod of a VM, where the status before did not say that any does not; else empty.
func Unplaced(before, now v1alpha1.VirtualMachineStatus) string {
	c := meta.FindStatusCondition(now.Conditions, CondCapacity)
	if c == nil || c.Status != metav1.ConditionFalse || meta.IsStatusConditionFalse(before.Conditions, CondCapacity) {
		return ""
	}
	return c.Message
}

// ends says what is left of what has ended, and what is lost.
func (o VM) ends(s *v1alpha1.VirtualMachineStatus, next Action) {
	rec := o.Record
	if op := rec.GetOperation(); op.GetCleanupPending() {
		set(s, CondCleanupPending, metav1.ConditionTrue, ReasonDeleteRefused, op.GetReason())
	} else if silent, _ := unreleased(op, o.Now); silent != "" {
		set(s, CondCleanupPending, metav1.ConditionTrue, ReasonNodeSilent, silent)
	} else if next.Waits == ReasonNodeSilent {
		set(s, CondCleanupPending, metav1.ConditionTrue, ReasonNodeSilent, next.Message)
	} else {
		meta.RemoveStatusCondition(&s.Conditions, CondCleanupPending)
	}
	if record.IsLost(rec) {
		set(s, CondLost, metav1.ConditionTrue, ReasonLost, fmt.Sprintf("newest snapshot %q", rec.GetLost()))
	} else if o.hadState() {
		set(s, CondLost, metav1.ConditionTrue, ReasonRecordMissing, o.bereft().Message)
	} else {
		meta.RemoveStatusCondition(&s.Conditions, CondLost)
	}
}

// unready is why a VM is not ready.
func (o VM) unready(phase v1alpha1.VMPhase, next Action) Reason {
	switch {
	case o.Record.GetOperation() != nil:
		return ReasonOperation
	case phase == v1alpha1.VMHibernated:
		return ReasonHibernated
	case phase == v1alpha1.VMStopped:
		return ReasonStopped
	case phase == v1alpha1.VMRunning:
		return ReasonPodNotReady
	case phase == v1alpha1.VMSucceeded, phase == v1alpha1.VMFailed:
		return ReasonEnded
	case next.Refused:
		return next.Waits
	}
	return ReasonStarting
}

func set(s *v1alpha1.VirtualMachineStatus, kind string, status metav1.ConditionStatus, reason Reason, message string) {
	setCondition(&s.Conditions, s.ObservedGeneration, kind, status, reason, message)
}

// setCondition leaves the time of the last change where the status is as it was.
func setCondition(all *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason Reason,
	message string) {
	const most = 32768 // characters of a message, by the schema
	if len(message) > most {
		message = message[:most]
	}
	meta.SetStatusCondition(all, metav1.Condition{Type: kind, Status: status, Reason: string(reason), Message: message,
		ObservedGeneration: generation})
}
