//go:build integration

package control

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const tick = 20 * time.Millisecond

// image is what a registry calls the image of each container.
const image = "m@sha256:2222222222222222222222222222222222222222222222222222222222222222"

// cluster is the scheduler, and the kubelets and shims of all nodes: it looks at each pod again and again.
func (w *world) cluster() {
	for w.t.Context().Err() == nil {
		all := &corev1.PodList{}
		if err := w.api.List(w.t.Context(), all, client.HasLabels{pods.LabelVM}); err == nil {
			for i := range all.Items {
				w.pod(&all.Items[i])
			}
		}
		time.Sleep(tick)
	}
}

func (w *world) pod(pod *corev1.Pod) {
	w.mu.Lock()
	away, collects := w.down[pod.Spec.NodeName], w.collects[pod.Spec.NodeName]
	w.mu.Unlock()
	switch {
	case away && collects: // as the collector of pods does it
		w.gone(pod)
	case away:
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		w.gone(pod)
	case pod.Spec.NodeName == "":
		w.schedule(pod)
	case pod.DeletionTimestamp != nil:
		w.stop(pod)
	case !pods.Ended(pod):
		w.run(pod)
	}
}

// schedule binds a pod to the first node that its affinity allows and that has room.
func (w *world) schedule(pod *corev1.Pod) {
	w.mu.Lock()
	full, down := slices.Clone(w.full), maps.Clone(w.down)
	w.mu.Unlock()
	for _, node := range []string{"a", "b", "c"} {
		if slices.Contains(full, node) || down[node] || !allows(pod.Spec.Affinity, node) {
			continue
		}
		bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		_ = w.api.SubResource("binding").Create(w.t.Context(), pod, bind)
		return
	}
	w.say(pod, func(s *corev1.PodStatus) {
		condition(s, corev1.PodScheduled, false, "0/3 nodes are available")
	})
}

func allows(a *corev1.Affinity, node string) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for _, need := range terms[0].MatchFields {
		if need.Key == metav1.ObjectNameField &&
			slices.Contains(need.Values, node) != (need.Operator == corev1.NodeSelectorOpIn) {
			return false
		}
	}
	return true
}

// say writes a pod's status, as it was seen. A write that comes too late is made with the next look.
func (w *world) say(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	next := pod.DeepCopy()
	change(&next.Status)
	if !equality.Semantic.DeepEqual(next.Status, pod.Status) {
		_ = w.api.Status().Update(w.t.Context(), next)
	}
}

func condition(s *corev1.PodStatus, kind corev1.PodConditionType, is bool, message string) {
	next := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Message: message}
	if is {
		next.Status = corev1.ConditionTrue
	}
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			next.LastTransitionTime = s.Conditions[i].LastTransitionTime
			s.Conditions[i] = next
			return
		}
	}
	s.Conditions = append(s.Conditions, next)
}

// run is a kubelet that makes a pod, and its shim: a boot owns the VM, and the pod of an operation is armed once the
// record names it as the place.
func (w *world) run(pod *corev1.Pod) {
	vm, node := pod.Namespace+"."+pod.Labels[pods.LabelVM], pod.Spec.NodeName
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed(vm)})
	if err != nil {
		return
	}
	w.mu.Lock()
	if op := rec.GetOperation(); op.GetPlace() == string(pod.UID) && op.GetDestination() == node &&
		pod.Spec.Containers[0].Image == image && (w.at[vm][node] == "" || w.at[vm][node] == left) &&
		op.GetPhase() < nodev1.Phase_PHASE_COMMITTED {
		w.set(vm, node, armed)
	}
	state, has := w.at[vm][node], cmp.Or(w.boots, image)
	w.mu.Unlock()
	if boots := pod.Labels[pods.LabelOperation] == ""; boots && state == "" && rec.GetOwner() == nil &&
		pods.Generation(pod) == rec.GetGeneration()+1 {
		if _, err := w.records.Own(w.t.Context(), &nodev1.OwnRequest{Vm: rec.GetVm(), Node: node,
			Generation: rec.GetGeneration(), Uid: rec.GetUid()}); err == nil {
			w.become(vm, node, runs)
		}
		return
	}
	mine := pods.Names(rec, pod)
	w.say(pod, func(s *corev1.PodStatus) {
		switch {
		case mine && state == runs:
			s.Phase = corev1.PodRunning
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "m:1", ImageID: has}}
			gate := slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == pods.GateRunning && c.Status == corev1.ConditionTrue
			})
			condition(s, corev1.PodReady, gate, "")
		case !mine && state == left && s.Phase == corev1.PodRunning: // its shim was released
			s.Phase = corev1.PodSucceeded
			condition(s, corev1.PodReady, false, "")
		}
	})
}

// stop is a kubelet that ends a pod. Its shim refuses while an operation is open on the VM that runs in it.
func (w *world) stop(pod *corev1.Pod) {
	vm, node := pod.Namespace+"."+pod.Labels[pods.LabelVM], pod.Spec.NodeName
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed(vm)})
	if err != nil && !errdefs.IsNotFound(err) {
		return
	}
	if pods.Names(rec, pod) {
		if rec.GetOperation() != nil {
			return
		}
		if _, err := w.records.Disown(w.t.Context(), &nodev1.DisownRequest{Vm: rec.GetVm(), Node: node,
			Generation: rec.GetGeneration()}); err != nil {
			return
		}
		w.become(vm, node, "")
	} else if w.is(vm, node) == armed { // it ends with its pod
		w.become(vm, node, "")
	}
	w.gone(pod)
}

func (w *world) gone(pod *corev1.Pod) {
	_ = w.api.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
}
