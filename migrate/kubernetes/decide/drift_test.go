package decide_test

import (
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func templateOf(t *testing.T, vm *v1alpha1.VirtualMachine) string {
	t.Helper()
	of, err := pods.Template(vm)
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// A VM that runs or sleeps is left alone, whatever its template has become: that is for the next boot, and is told.
func TestDriftEndsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*decide.VM)
		drift  metav1.ConditionStatus // empty: it is not told
	}{
		"runs": {func(*decide.VM) {}, metav1.ConditionTrue},
		"what was written down": {func(o *decide.VM) {
			o.Template = o.Pods[0].Labels[pods.LabelTemplate]
			delete(o.Pods[0].Labels, pods.LabelTemplate)
		}, metav1.ConditionTrue},
		"sleeps": {func(o *decide.VM) {
			o.Template = o.Pods[0].Labels[pods.LabelTemplate]
			owned(asleep)(o)
			mode(v1alpha1.ModeHibernated)(o)
		}, metav1.ConditionTrue},
		"changed back": {func(o *decide.VM) {
			o.Object.Spec.Template.Spec.Containers[0].Image, o.Object.Spec.Template.Spec.Affinity = "m:1", nil
		}, metav1.ConditionFalse},
		"booted by an older release": {func(o *decide.VM) { delete(o.Pods[0].Labels, pods.LabelTemplate) }, ""},
		"ended": {func(o *decide.VM) {
			o.Template = "other"
			owned(nil)(o)
			mode(v1alpha1.ModeStopped)(o)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := world()
			o.Pods[0].Labels[pods.LabelTemplate] = templateOf(t, o.Object)
			o.Object.Spec.Template.Spec.Containers[0].Image = "m:2"
			o.Object.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
			test.change(&o)
			next := decide.NextVM(o)
			want{do: decide.None}.check(t, next)
			said := meta.FindStatusCondition(decide.VMStatus(o, next).Conditions, decide.CondTemplateDrift)
			switch {
			case test.drift == "" && said != nil, test.drift != "" && said == nil:
				t.Errorf("condition %+v", said)
			case said != nil && (said.Status != test.drift || said.ObservedGeneration != o.Object.Generation):
				t.Errorf("condition %+v", said)
			}
		})
	}
}

// A wake of a VM whose template has changed goes on with its memory: the intent survives the drift, and the pod says
// nothing of the new template.
func TestDriftKeepsTheIntent(t *testing.T) {
	o := world(owned(asleep))
	o.Template = templateOf(t, o.Object)
	o.Object.Spec.Template.Spec.Containers[0].Image = "m:2"
	want{do: decide.MakeOperation, detail: "Wake "}.check(t, decide.NextVM(o))
	o.Record.Operation = operation(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_PENDING)
	o.Record.Operation.ByPlace = true
	next := decide.Arrival(o)
	want{do: decide.MakePod, detail: "vm-g4-a1"}.check(t, next)
	if c := next.Pod.Spec.Containers[0]; c.Image != "m@"+digest || next.Pod.Labels[pods.LabelTemplate] != "" {
		t.Errorf("image %s, template %q", c.Image, next.Pod.Labels[pods.LabelTemplate])
	}
}

// What the VM booted from is written down, as it sleeps without a pod.
func TestNoteTemplate(t *testing.T) {
	o := world(func(o *decide.VM) { o.Running = o.Images })
	o.Pods[0].Labels[pods.LabelTemplate] = "t1"
	next := decide.NextVM(o)
	want{do: decide.NoteRun}.check(t, next)
	if next.Template != "t1" {
		t.Errorf("noted %q", next.Template)
	}
	o.Template = "t1"
	want{do: decide.None}.check(t, decide.NextVM(o))
	delete(o.Pods[0].Labels, pods.LabelTemplate) // it woke: what was noted stays
	want{do: decide.None}.check(t, decide.NextVM(o))
}

// A pod that a VM came into says so, and how. One that it boots in never does.
func TestRestored(t *testing.T) {
	untold := func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:len(p.Status.Conditions)-1] }
	open := func(kind nodev1.Kind) func(*decide.VM) {
		return func(o *decide.VM) { o.Record.Operation = operation(kind, nodev1.Phase_PHASE_CLEANING) }
	}
	for name, test := range map[string]struct {
		pod      []func(*corev1.Pod)
		change   func(*decide.VM)
		set      bool
		restored decide.Reason
	}{
		"boots": {[]func(*corev1.Pod){gated, untold}, func(*decide.VM) {}, false, ""},
		"woke":  {[]func(*corev1.Pod){of("op1", 1)}, open(nodev1.Kind_KIND_WAKE), true, decide.ReasonWoken},
		"moved": {[]func(*corev1.Pod){of("op1", 1)}, open(nodev1.Kind_KIND_MIGRATE), true, decide.ReasonMoved},
		"told too late": {[]func(*corev1.Pod){gated, untold, of("op9", 1)}, func(*decide.VM) {}, true,
			decide.ReasonRestored},
		"told": {[]func(*corev1.Pod){gated, of("op1", 1)}, func(*decide.VM) {}, false, ""},
		"elsewhere": {[]func(*corev1.Pod){of("op1", 1)}, func(o *decide.VM) { o.Record.Owner.Node = "b" }, false,
			""},
	} {
		t.Run(name, func(t *testing.T) {
			o := world(owned(&nodev1.Owner{Node: "a"}))
			o.Pods = []corev1.Pod{pod(o.Object, "vm-g3-a1", 3, "a", corev1.PodRunning, test.pod...)}
			test.change(&o)
			next := decide.NextVM(o)
			if (next.Do == decide.SetGate) != test.set || next.Restored != test.restored || test.set && !next.On {
				t.Errorf("%s, %q, %t", next.Do, next.Restored, next.On)
			}
		})
	}
}

// A pod for a boot that has no node yet is made anew of an edited template. One that has a node is left.
func TestEditBeforeANode(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*decide.VM)
		do     decide.Do
	}{
		"no node": {func(*decide.VM) {}, decide.DeletePod},
		"a node":  {func(o *decide.VM) { o.Pods[0].Spec.NodeName = "a" }, decide.None},
		"the same template": {func(o *decide.VM) {
			o.Object.Spec.Template.Spec.Containers[0].Image = "m:1"
		}, decide.None},
		"of an older release":      {func(o *decide.VM) { delete(o.Pods[0].Labels, pods.LabelTemplate) }, decide.None},
		"what it was is not known": {func(o *decide.VM) { o.Unread = errdefs.ErrUnavailable }, decide.None},
	} {
		o := world()
		o.Pods[0].Labels[pods.LabelTemplate] = templateOf(t, o.Object)
		o.Pods[0].Spec.NodeName, o.Pods[0].Status = "", corev1.PodStatus{Phase: corev1.PodPending}
		o.Pods[0].Labels[pods.LabelGeneration] = itoa(o.Record.Generation + 1)
		o.Record.Owner = nil
		o.Object.Spec.Template.Spec.Containers[0].Image = "m:2"
		test.change(&o)
		if next := decide.NextVM(o); next.Do != test.do {
			t.Errorf("%s: %s of %s, want %s", name, next.Do, next.Waits, test.do)
		}
	}
}
