package decide

import (
	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// gate says which pod the record names: services and budgets count that one as ready. One that the VM came into with
// its memory says so in addition.
func (o VM) gate() Action {
	own, _ := o.own()
	for i := range own {
		pod := &own[i]
		if o.Record == nil || pods.Ended(pod) {
			continue
		}
		named := o.names(pod)
		untold := named && pod.Labels[pods.LabelOperation] != "" && !isTrue(pod, pods.CondRestored)
		if named == gateOf(pod) && !untold || !named && o.keepsGate(pod) {
			continue
		}
		next := Action{Do: SetGate, Pod: pod, On: named}
		if untold {
			next.Restored = o.came(pod)
		}
		return next
	}
	return Action{Do: None}
}

// came says how the VM came into a pod of an operation.
func (o VM) came(pod *corev1.Pod) Reason {
	id := pod.Labels[pods.LabelOperation]
	kind := v1alpha1.OperationKind("")
	if op := o.Record.GetOperation(); op.GetId() == id {
		kind = phases.Kinds[op.GetKind()]
	} else if order := o.orderOf(id); order != nil {
		kind = order.Spec.Kind
	}
	switch kind {
	case v1alpha1.KindWake:
		return ReasonWoken
	case v1alpha1.KindMigrate:
		return ReasonMoved
	}
	return ReasonRestored
}

// template is the one that the VM booted from. The pod that it runs in says so, or what was written down before.
func (o VM) template() string {
	own, _ := o.own()
	for i := range own {
		if of := own[i].Labels[pods.LabelTemplate]; of != "" && o.names(&own[i]) {
			return of
		}
	}
	return o.Template
}

// keepsGate: the pod that a move left counts as ready until the new one is, so that no budget sees a gap.
func (o VM) keepsGate(pod *corev1.Pod) bool {
	if !gateOf(pod) || o.Record.GetOperation() == nil {
		return false
	}
	own, _ := o.own()
	for i := range own {
		if o.names(&own[i]) && Ready(&own[i]) {
			return false
		}
	}
	return true
}

func gateOf(pod *corev1.Pod) bool { return isTrue(pod, pods.GateRunning) }

// Ready reports whether a pod counts as ready.
func Ready(pod *corev1.Pod) bool { return isTrue(pod, corev1.PodReady) }

func isTrue(pod *corev1.Pod, which corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == which {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
