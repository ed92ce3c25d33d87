package decide_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func exits(code int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}, {Name: "warm-up",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
	}
}

func forASnapshotAlone(o *metav1.ObjectMeta) {
	if o.Labels == nil {
		o.Labels = map[string]string{}
	}
	o.Labels[decide.LabelCaptureOnly] = "true"
}

// A VM that is there for a snapshot alone is stopped if a container of it fails before. One that has a snapshot, that
// went on with its memory, or that is not called so, stays.
func TestFailedAlone(t *testing.T) {
	stays := want{do: decide.None}
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"it fails":        {func(*decide.VM) {}, want{do: decide.StopVM, waits: decide.ReasonTaskFailed}},
		"it ends well":    {func(o *decide.VM) { exits(0)(&o.Pods[0]) }, stays},
		"it is restarted": {crashed, want{do: decide.StopVM, waits: decide.ReasonTaskFailed}},
		"not called so":   {func(o *decide.VM) { o.Object.Spec.Template.Labels = nil }, stays},
		"the pod says so": {func(o *decide.VM) {
			o.Object.Spec.Template.Labels = nil
			forASnapshotAlone(&o.Pods[0].ObjectMeta)
		}, stays},
		"another value":     {func(o *decide.VM) { o.Object.Spec.Template.Labels[decide.LabelCaptureOnly] = "yes" }, stays},
		"it has a snapshot": {func(o *decide.VM) { o.Record.Snapshots = []*nodev1.SnapshotRef{{Digest: digest}} }, stays},
		"it was woken":      {func(o *decide.VM) { of("op0", 1)(&o.Pods[0]) }, stays},
		"a wake was spent":  {func(o *decide.VM) { o.Record.Spent = []string{digest} }, stays},
		"from a snapshot":   {func(o *decide.VM) { o.Record.Base = digest }, stays},
		"not of this VM": {func(o *decide.VM) { o.Pods[0].OwnerReferences[0].UID = "u9" },
			want{do: decide.None, waits: decide.ReasonNodeUnreachable}},
		"it is captured": {func(o *decide.VM) {
			o.Record.Operation = operation(nodev1.Kind_KIND_CHECKPOINT, nodev1.Phase_PHASE_TRANSFERRING)
		}, want{do: decide.None, waits: decide.ReasonOperation}},
		"its pod is deleted":  {func(o *decide.VM) { ending(&o.Pods[0]) }, stays},
		"its node shuts down": {func(o *decide.VM) { o.Pods[0].Status.Reason = "Terminated" }, stays},
		"its pod is evicted": {func(o *decide.VM) {
			o.Pods[0].Status.Conditions = append(o.Pods[0].Status.Conditions, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
		}, stays},
		"its pod was ended from outside": {func(o *decide.VM) {
			o.Record.Owner = nil
			o.Pods[0].Status.Phase, o.Pods[0].Status.Reason = corev1.PodFailed, "Terminated"
		}, want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"it is stopped, and its pod is there": {func(o *decide.VM) {
			o.Record.Owner = nil
			o.Pods[0].Status.Phase = corev1.PodFailed
			o.Object.Spec.OperatingMode = v1alpha1.ModeStopped
		}, want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"it is to run again": {func(o *decide.VM) { o.Record.Owner, o.Pods = nil, nil },
			want{do: decide.MakePod, detail: "vm-g4-a0"}},
		"it is to sleep": {mode(v1alpha1.ModeHibernated), want{do: decide.MakeOperation, detail: "Hibernate "}},
		"its pod has ended": {func(o *decide.VM) {
			o.Record.Owner = nil
			o.Pods[0].Status.Phase = corev1.PodFailed
		}, want{do: decide.StopVM, waits: decide.ReasonTaskFailed}},
	} {
		t.Run(name, func(t *testing.T) {
			o := world()
			forASnapshotAlone(&o.Object.Spec.Template.ObjectMeta)
			exits(3)(&o.Pods[0])
			test.change(&o)
			test.want.check(t, decide.NextVM(o))
		})
	}
}

// crashed is a container that the kubelet has started again.
func crashed(o *decide.VM) {
	c := &o.Pods[0].Status.ContainerStatuses[1]
	c.LastTerminationState, c.State = c.State, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
}

// The order of a pod that is there for its snapshot alone has failed once a container has, also if the pod has by it. A
// pod that is not called so is waited for, and one that is ended from outside is gone.
func TestOrderOfAFailedTask(t *testing.T) {
	failed := want{do: decide.TellFailed, waits: decide.ReasonTaskFailed, refused: true}
	gone := want{do: decide.TellFailed, waits: decide.ReasonSourceGone, refused: true}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want want
	}{
		"it fails":           {running(exits(3), unready), failed},
		"its pod has failed": {running(exits(3), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), failed},
		"it is ended":        {running(exits(137), ending), gone},
		"it ends well":       {running(exits(0), promoted, unready), want{do: decide.None, waits: decide.ReasonPodNotReady}},
		"another ends":       {running(ending), gone},
		"not called so":      {running(exits(3), promoted, unready), want{do: decide.None, waits: decide.ReasonPodNotReady}},
	} {
		t.Run(name, func(t *testing.T) {
			c := order("vmsnap-s1")
			if name != "not called so" {
				forASnapshotAlone(&test.pod.ObjectMeta)
			}
			test.want.check(t, decide.NextContent(decide.Content{Object: &c, Node: "a", Pod: test.pod}))
		})
	}
}
