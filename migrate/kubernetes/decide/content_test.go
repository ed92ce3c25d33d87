package decide_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// order is a work order for the pod of the VM, at node a.
func order(name string) v1alpha1.VMSnapshotContent {
	return v1alpha1.VMSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("of-" + name),
		CreationTimestamp: metav1.NewTime(now), Finalizers: []string{decide.FinalizerSnapshot},
		Labels: map[string]string{decide.LabelNode: "a", decide.LabelSnapshotUID: "s1", pods.LabelVM: "vm",
			pods.LabelRecordUID: "u1"}},
		Spec: v1alpha1.VMSnapshotContentSpec{SnapshotRef: v1alpha1.NamespacedRef{Namespace: "ns", Name: "snap", UID: "s1"},
			Source: v1alpha1.ContentSource{NodeName: "a", PodRef: v1alpha1.NamespacedRef{Namespace: "ns", Name: "vm-g3-a0",
				UID: "vm-g3-a0"}}}}
}

func running(change ...func(*corev1.Pod)) *corev1.Pod {
	p := pod(world().Object, "vm-g3-a0", 3, "a", corev1.PodRunning, append([]func(*corev1.Pod){gated}, change...)...)
	return &p
}

func promoted(p *corev1.Pod) { p.Labels[decide.LabelEligible] = "true" }

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func is(kind string) func(*v1alpha1.VMSnapshotContent) {
	return func(c *v1alpha1.VMSnapshotContent) {
		c.Status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue}}
	}
}

func refusedBefore(o *decide.Content) {
	o.Pod = running(promoted)
	o.Object.Status.Conditions = []metav1.Condition{{Type: decide.CondReady, Status: metav1.ConditionFalse,
		Reason: string(decide.ReasonRefused)}}
}

func captured(phase nodev1.Phase) *nodev1.Operation {
	return &nodev1.Operation{Id: "s1", Kind: nodev1.Kind_KIND_CHECKPOINT, Phase: phase}
}

// A node follows its own orders, and drops one whose spec names another node, whatever its label says.
func TestOrderRouting(t *testing.T) {
	c := order("vmsnap-s1")
	o := decide.Content{Object: &c, Node: "b", Pod: running()}
	want{do: decide.None}.check(t, decide.NextContent(o))
	c.Labels[decide.LabelNode] = "b"
	want{do: decide.None}.check(t, decide.NextContent(o))
	want{do: decide.Demote, detail: "vm-g3-a0"}.check(t, decide.NextCapture(decide.Promoted{Pod: running(promoted),
		Node: "b", Orders: []v1alpha1.VMSnapshotContent{c}}))
	o.Node = "a"
	want{do: decide.Promote, detail: "vm-g3-a0"}.check(t, decide.NextContent(o))
	long := strings.Repeat("n", 100)
	if a, b := decide.NodeLabel(long), decide.NodeLabel(long+"x"); len(a) > 63 || a == b || decide.NodeLabel("a") != "a" {
		t.Errorf("labels %q and %q", a, b)
	}
}

// An order promotes a pod that is fit, once, and never captures. What can never be is told, each by its reason.
func TestPromoteOnly(t *testing.T) {
	fails := func(why decide.Reason) want { return want{do: decide.TellFailed, waits: why, refused: true} }
	for name, test := range map[string]struct {
		change func(*decide.Content)
		want   want
	}{
		"a pod that is fit": {func(*decide.Content) {}, want{do: decide.Promote, detail: "vm-g3-a0"}},
		"promoted already": {func(o *decide.Content) { o.Pod = running(promoted) },
			want{do: decide.None, waits: decide.ReasonOperation}},
		"promoted, and not Ready": {func(o *decide.Content) { o.Pod = running(promoted, unready) },
			want{do: decide.None, waits: decide.ReasonPodNotReady}},
		"no pod":          {func(o *decide.Content) { o.Pod = nil }, fails(decide.ReasonSourceNotFound)},
		"another pod":     {func(o *decide.Content) { o.Pod.UID = "u9" }, fails(decide.ReasonStaleSource)},
		"a pod that ends": {func(o *decide.Content) { ending(o.Pod) }, fails(decide.ReasonSourceGone)},
		"a pod that ended": {func(o *decide.Content) { o.Pod.Status.Phase = corev1.PodFailed },
			fails(decide.ReasonSourceGone)},
		"a pod elsewhere": {func(o *decide.Content) { o.Pod.Spec.NodeName = "b" }, fails(decide.ReasonStaleSource)},
		"no VM is named": {func(o *decide.Content) { delete(o.Object.Labels, pods.LabelVM) },
			fails(decide.ReasonInvalid)},
		"another namespace": {func(o *decide.Content) { o.Object.Spec.SnapshotRef.Namespace = "other" },
			fails(decide.ReasonInvalid)},
		"the pod is not known": {func(o *decide.Content) { o.Pod, o.Unread = nil, errors.New("no answer") },
			want{do: decide.None, waits: decide.ReasonRecordsUnavailable}},
		"it runs here": {func(o *decide.Content) { o.Running = true },
			want{do: decide.None, waits: decide.ReasonOperation}},
		"it was refused": {refusedBefore, want{do: decide.None, waits: decide.ReasonRefused}},
		"it was refused, and is tried": {func(o *decide.Content) { refusedBefore(o); o.Running = true },
			want{do: decide.None, waits: decide.ReasonRefused}},
		"it was refused, and has begun": {func(o *decide.Content) {
			refusedBefore(o)
			o.Running, o.Found = true, captured(nodev1.Phase_PHASE_TRANSFERRING)
		}, want{do: decide.None, waits: decide.ReasonOperation}},
		"published, and not told; the pod is gone": {func(o *decide.Content) {
			o.Pod, o.Found = nil, captured(nodev1.Phase_PHASE_SUCCEEDED)
		}, want{do: decide.Capture}},
		"Ready is final":  {func(o *decide.Content) { is(decide.CondReady)(o.Object); o.Pod = nil }, want{do: decide.None}},
		"Failed is final": {func(o *decide.Content) { is(decide.CondFailed)(o.Object) }, want{do: decide.None}},
		"it is deleted":   {func(o *decide.Content) { gone(o.Object) }, want{do: decide.None}},
		"it is deleted under the capture": {func(o *decide.Content) {
			gone(o.Object)
			o.Running, o.Found = true, captured(nodev1.Phase_PHASE_TRANSFERRING)
		}, want{do: decide.OrderAbort, detail: "s1"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := order("vmsnap-s1")
			o := decide.Content{Object: &c, Node: "a", Pod: running()}
			test.change(&o)
			next := decide.NextContent(o)
			test.want.check(t, next)
			if next.Do == decide.Capture && o.Found == nil {
				t.Error("an event of an order begins a capture")
			}
		})
	}
}

func gone(c *v1alpha1.VMSnapshotContent) { at := metav1.NewTime(now); c.DeletionTimestamp = &at }

// A promoted pod that is Ready is captured for its oldest order: by time, then by name. The label is taken back when no
// order wants the pod, or can have it.
func TestOldestFirst(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*decide.Promoted)
		order  string
		want   want
	}{
		"the oldest": {func(o *decide.Promoted) {
			o.Orders[2].CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		}, "c", want{do: decide.Capture}},
		"of one time, by name": {func(*decide.Promoted) {}, "a", want{do: decide.Capture}},
		"those that have ended do not count": {func(o *decide.Promoted) {
			is(decide.CondReady)(&o.Orders[1])
			gone(&o.Orders[0])
		}, "c", want{do: decide.Capture}},
		"not Ready": {func(o *decide.Promoted) { unready(o.Pod) }, "",
			want{do: decide.None, waits: decide.ReasonPodNotReady}},
		"not promoted": {func(o *decide.Promoted) { o.Pod = running() }, "", want{do: decide.None}},
		"it ends":      {func(o *decide.Promoted) { ending(o.Pod) }, "", want{do: decide.Demote, detail: "vm-g3-a0"}},
		"another pod": {func(o *decide.Promoted) { o.Pod.UID = "u9" }, "",
			want{do: decide.Demote, detail: "vm-g3-a0"}},
		"no order": {func(o *decide.Promoted) { o.Orders = nil }, "", want{do: decide.Demote, detail: "vm-g3-a0"}},
		"orders are not known": {func(o *decide.Promoted) { o.Orders, o.Unread = nil, errors.New("no answer") }, "",
			want{do: decide.None, waits: decide.ReasonRecordsUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			o := decide.Promoted{Pod: running(promoted), Node: "a",
				Orders: []v1alpha1.VMSnapshotContent{order("b"), order("a"), order("c")}}
			test.change(&o)
			next := decide.NextCapture(o)
			test.want.check(t, next)
			if next.Content != nil && next.Content.Name != test.order {
				t.Errorf("order %s, want %s", next.Content.Name, test.order)
			}
		})
	}
}

// Who has lost the claim calls the capture off, or says nothing. Only a holder tells an end.
func TestLeaseLost(t *testing.T) {
	done, cancelled := captured(nodev1.Phase_PHASE_SUCCEEDED), captured(nodev1.Phase_PHASE_ABORTED)
	done.Digest, cancelled.Cancelled = digest, true
	for name, test := range map[string]struct {
		found *nodev1.Operation
		held  bool
		want  want
	}{
		"lost under way": {captured(nodev1.Phase_PHASE_TRANSFERRING), false, want{do: decide.OrderAbort, detail: "s1"}},
		"lost once it is listed": {captured(nodev1.Phase_PHASE_COMMITTED), false,
			want{do: decide.None, waits: decide.ReasonOperation}},
		"lost after it": {done, false, want{do: decide.None, waits: decide.ReasonOperation}},
		"held under way": {captured(nodev1.Phase_PHASE_TRANSFERRING), true,
			want{do: decide.None, waits: decide.ReasonOperation}},
		"held after it": {done, true, want{do: decide.TellReady, detail: "s1"}},
		"no snapshot": {captured(nodev1.Phase_PHASE_SUCCEEDED), true,
			want{do: decide.TellFailed, waits: decide.ReasonCaptureFailed, refused: true}},
		"it failed": {captured(nodev1.Phase_PHASE_FAILED), true,
			want{do: decide.TellFailed, waits: decide.ReasonCaptureFailed, refused: true}},
		"it was called off": {cancelled, true,
			want{do: decide.TellFailed, waits: decide.ReasonCancelled, refused: true}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextReport(test.found, test.held)) })
	}
}
