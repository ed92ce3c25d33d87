package decide_test

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// snapshotWorld is a VMSnapshot of a VM that runs on node a, before its work order is made.
func snapshotWorld() decide.Snapshot {
	snap := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap", Namespace: "ns", UID: "s1", Generation: 1,
		Finalizers: []string{decide.FinalizerSnapshot}}}
	snap.Spec.Source.VMRef = &v1alpha1.VMRef{Name: "vm", UID: "u1"}
	snap.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	return decide.Snapshot{Object: snap, VM: world().Object, Pod: running(), Record: record(atA, 3, nil)}
}

// hasOrder is it with its work order, whose status a node has written.
func hasOrder(kind string) func(*decide.Snapshot) {
	return func(o *decide.Snapshot) {
		c := order("vmsnap-s1")
		if kind != "" {
			is(kind)(&c)
			c.Status.Conditions[0].Reason, c.Status.Digest = string(decide.ReasonSourceGone), digest
		}
		o.Named, o.Labelled = &c, []v1alpha1.VMSnapshotContent{c}
	}
}

func lists(o *decide.Snapshot) {
	o.Record.Snapshots = []*nodev1.SnapshotRef{{Digest: digest, Operation: "s1", Bytes: 7,
		CreatedUnixNano: now.UnixNano()}}
}

func snapDeleted(o *decide.Snapshot) { at := metav1.NewTime(now); o.Object.DeletionTimestamp = &at }

func byPod(o *decide.Snapshot) {
	o.Object.Spec.Source = v1alpha1.SnapshotSource{PodRef: &v1alpha1.PodRef{Name: "vm-g3-a0", UID: "vm-g3-a0"}}
}

type snapshotCase struct {
	change []func(*decide.Snapshot)
	want   want
}

func TestNextSnapshot(t *testing.T) {
	waits := func(why decide.Reason) want { return want{do: decide.None, waits: why} }
	fails := func(why decide.Reason) want { return want{do: decide.None, waits: why, refused: true} }
	type do = func(*decide.Snapshot)
	for name, test := range map[string]snapshotCase{
		"an order":        {nil, want{do: decide.MakeContent}},
		"an order by pod": {[]do{byPod}, want{do: decide.MakeContent}},
		"no finalizer":    {[]do{func(o *decide.Snapshot) { o.Object.Finalizers = nil }}, want{do: decide.AddFinalizer}},
		"not known": {[]do{func(o *decide.Snapshot) { o.Unread = errors.New("x") }},
			waits(decide.ReasonRecordsUnavailable)},
		"no VM yet":        {[]do{func(o *decide.Snapshot) { o.VM, o.Pod = nil, nil }}, waits(decide.ReasonSourceNotFound)},
		"another VM":       {[]do{func(o *decide.Snapshot) { o.VM.UID = "u2" }}, fails(decide.ReasonStaleSource)},
		"no pod yet":       {[]do{func(o *decide.Snapshot) { o.Pod = nil }}, waits(decide.ReasonNoNode)},
		"no node yet":      {[]do{byPod, func(o *decide.Snapshot) { o.Pod.Spec.NodeName = "" }}, waits(decide.ReasonNoNode)},
		"not the VM's pod": {[]do{byPod, func(o *decide.Snapshot) { o.Record.Generation = 2 }}, waits(decide.ReasonNoNode)},
		"no such pod":      {[]do{byPod, func(o *decide.Snapshot) { o.Pod = nil }}, fails(decide.ReasonSourceNotFound)},
		"another pod":      {[]do{byPod, func(o *decide.Snapshot) { o.Pod.UID = "u9" }}, fails(decide.ReasonStaleSource)},
		"a pod that ends":  {[]do{byPod, func(o *decide.Snapshot) { ending(o.Pod) }}, fails(decide.ReasonSourceGone)},
		"a class that is not there": {[]do{func(o *decide.Snapshot) { o.Class.Name = "c" }},
			waits(decide.ReasonClassNotFound)},
		"the name is taken": {[]do{hasOrder(""), func(o *decide.Snapshot) {
			o.Named.Spec.SnapshotRef.UID, o.Labelled = "s0", nil
		}}, fails(decide.ReasonContentConflict)},
		"the name is ours, without a label": {[]do{hasOrder(""), func(o *decide.Snapshot) {
			o.Named.Labels, o.Labelled = nil, nil
		}}, want{do: decide.AdoptContent}},
		"a label lies": {[]do{func(o *decide.Snapshot) {
			c := order("other")
			c.Spec.SnapshotRef.UID = "s0"
			o.Labelled = []v1alpha1.VMSnapshotContent{c}
		}}, want{do: decide.MakeContent}},
		"ordered":           {[]do{hasOrder("")}, waits(decide.ReasonOperation)},
		"the node failed":   {[]do{hasOrder(decide.CondFailed)}, fails(decide.ReasonSourceGone)},
		"Ready by its node": {[]do{hasOrder(decide.CondReady)}, waits(decide.ReasonNotListed)},
		"Ready by both":     {[]do{hasOrder(decide.CondReady), lists}, want{do: decide.None}},
		"two digests": {[]do{hasOrder(decide.CondReady), lists, func(o *decide.Snapshot) {
			o.Record.Snapshots[0].Digest = "sha256:other"
		}}, waits(decide.ReasonNotListed)},
		"where its class says": {[]do{hasOrder(decide.CondReady), lists, func(o *decide.Snapshot) {
			o.Labelled[0].Spec.Repository, o.Record.Snapshots[0].Repository = "reg.example/gold", "reg.example/gold/u1"
		}}, want{do: decide.None}},
		"elsewhere than its class says": {[]do{hasOrder(decide.CondReady), lists, func(o *decide.Snapshot) {
			o.Labelled[0].Spec.Repository, o.Record.Snapshots[0].Repository = "reg.example/gold", "r/u1"
		}}, fails(decide.ReasonElsewhere)},
		"listed, and not said": {[]do{hasOrder(""), lists}, waits(decide.ReasonOperation)},
		"the order was deleted": {[]do{hasOrder(""), func(o *decide.Snapshot) { gone(&o.Labelled[0]) }},
			want{do: decide.ReleaseContent}},
		"the order was deleted under the capture": {[]do{hasOrder(""), func(o *decide.Snapshot) {
			gone(&o.Labelled[0])
			o.Record.Operation = captured(nodev1.Phase_PHASE_TRANSFERRING)
		}}, waits(decide.ReasonClaimed)},
		"the order is gone after it": {[]do{lists}, want{do: decide.None}},
	} {
		t.Run(name, func(t *testing.T) {
			o := snapshotWorld()
			for _, change := range test.change {
				change(&o)
			}
			test.want.check(t, decide.NextSnapshot(o))
		})
	}
}

// Deletion takes the work order, then has the record owe the snapshot, and lets the object go last.
func TestSnapshotDeletion(t *testing.T) {
	type do = func(*decide.Snapshot)
	going := func(o *decide.Snapshot) { hasOrder(decide.CondReady)(o); gone(&o.Labelled[0]); gone(o.Named) }
	for name, test := range map[string]snapshotCase{
		"the order first": {[]do{hasOrder(decide.CondReady), lists}, want{do: decide.DeleteContent}},
		"its capture ends": {[]do{going, func(o *decide.Snapshot) {
			o.Record.Operation = captured(nodev1.Phase_PHASE_TRANSFERRING)
		}}, want{do: decide.None, waits: decide.ReasonClaimed}},
		"a node may begin": {[]do{going, func(o *decide.Snapshot) { o.Claimed = true }},
			want{do: decide.None, waits: decide.ReasonClaimed}},
		"the debt": {[]do{going, lists}, want{do: decide.TrimSnapshot}},
		"in use": {[]do{going, lists, func(o *decide.Snapshot) { o.Record.Owner = asleep }},
			want{do: decide.None, waits: decide.ReasonInUse}},
		"Retain": {[]do{going, lists, func(o *decide.Snapshot) {
			o.Object.Spec.DeletionPolicy = v1alpha1.DeletionRetain
		}}, want{do: decide.ReleaseContent}},
		"nothing is listed": {[]do{going}, want{do: decide.ReleaseContent}},
		"the object last":   {nil, want{do: decide.DropFinalizer}},
		"not known": {[]do{func(o *decide.Snapshot) { o.Unread = errors.New("x") }},
			want{do: decide.None, waits: decide.ReasonRecordsUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			o := snapshotWorld()
			snapDeleted(&o)
			for _, change := range test.change {
				change(&o)
			}
			test.want.check(t, decide.NextSnapshot(o))
		})
	}
}

// The order's name follows from the uid alone, and each capture has one id and one claim: the snapshot's.
func TestOneCapture(t *testing.T) {
	o := snapshotWorld()
	a, b := decide.NextSnapshot(o), decide.NextSnapshot(o)
	if a.Content.Name != "vmsnap-s1" || a.Content.Name != b.Content.Name ||
		a.Content.Name != decide.OrderName(types.UID(a.Content.Spec.SnapshotRef.UID)) {
		t.Errorf("orders %s and %s", a.Content.Name, b.Content.Name)
	}
	spec := a.Content.Spec
	if spec != order("vmsnap-s1").Spec {
		t.Errorf("spec %+v", spec)
	}
	if labels := a.Content.Labels; labels[decide.LabelNode] != "a" || labels[decide.LabelSnapshotUID] != "s1" ||
		len(a.Content.Finalizers) != 1 {
		t.Errorf("labels %v, finalizers %v", labels, a.Content.Finalizers)
	}
}

// An order that has gone still says whose it was, and which pod it was for.
func TestTombstoneMaps(t *testing.T) {
	c := order("any")
	gone(&c)
	if got := decide.SnapshotOf(&c); got.String() != "ns/snap" {
		t.Errorf("of %s", got)
	}
	if got := decide.PodOf(&c); got.String() != "ns/vm-g3-a0" {
		t.Errorf("for pod %s", got)
	}
}

// Of two orders none is chosen: it is told, and looked at again. Nothing is made or deleted.
func TestAmbiguityTold(t *testing.T) {
	o := snapshotWorld()
	o.Labelled = []v1alpha1.VMSnapshotContent{order("one"), order("two")}
	next := decide.NextSnapshot(o)
	want{do: decide.None, waits: decide.ReasonAmbiguous}.check(t, next)
	if next.After <= 0 || next.After > time.Minute {
		t.Errorf("looked at again after %s", next.After)
	}
}

// Ready is the record's word, and never without the order's name. What a hand wrote is healed; Failed stays.
func TestSnapshotStatus(t *testing.T) {
	o := snapshotWorld()
	hasOrder(decide.CondReady)(&o)
	lists(&o)
	s := decide.SnapshotStatus(o, decide.NextSnapshot(o))
	if !meta.IsStatusConditionTrue(s.Conditions, decide.CondReady) || s.BoundSnapshotContentName != "vmsnap-s1" ||
		s.Digest != digest || s.Bytes != 7 || s.CompletionTime == nil || s.ObservedGeneration != 1 {
		t.Errorf("%+v", s)
	}
	o.Object.Status = *s.DeepCopy()
	o.Object.Status.BoundSnapshotContentName, o.Object.Status.Digest = "", "sha256:forged"
	if healed := decide.SnapshotStatus(o, decide.NextSnapshot(o)); !equal(healed, s) {
		t.Errorf("not healed: %+v", healed)
	}
	o.Object.Finalizers = nil
	if same := decide.SnapshotStatus(o, decide.NextSnapshot(o)); !equal(same, o.Object.Status) {
		t.Errorf("a finalizer that was stripped takes Ready away: %+v", same)
	}
	o.Object.Finalizers, o.Record.Snapshots = []string{decide.FinalizerSnapshot}, nil
	if s = decide.SnapshotStatus(o, decide.NextSnapshot(o)); meta.IsStatusConditionTrue(s.Conditions, decide.CondReady) ||
		s.Digest != "" {
		t.Errorf("Ready, and the record does not list it: %+v", s)
	}
	hasOrder(decide.CondFailed)(&o)
	s = decide.SnapshotStatus(o, decide.NextSnapshot(o))
	if !meta.IsStatusConditionTrue(s.Conditions, decide.CondFailed) {
		t.Fatalf("%+v", s)
	}
	o.Object.Status = s
	hasOrder(decide.CondReady)(&o)
	lists(&o)
	if again := decide.SnapshotStatus(o, decide.NextSnapshot(o)); !equal(again, s) {
		t.Errorf("Failed has become %+v", again)
	}
	o = snapshotWorld()
	o.Pod.Status.Phase = corev1.PodRunning
	if s := decide.SnapshotStatus(o, decide.NextSnapshot(o)); meta.IsStatusConditionTrue(s.Conditions, decide.CondReady) {
		t.Errorf("Ready before anything: %+v", s)
	}
}

func hasImage(pod *corev1.Pod, id string) {
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ImageID: id}}
}

// The status says the images of the pod that was captured, from the write before its order on. What runs there later,
// or in another pod, is not in the snapshot.
func TestImagesOfASnapshot(t *testing.T) {
	o := snapshotWorld()
	says := func(what, want string) {
		t.Helper()
		o.Object.Status = decide.SnapshotStatus(o, decide.NextSnapshot(o))
		if got := o.Object.Status.Images["main"]; got != want {
			t.Errorf("%s: image %q, want %q", what, got, want)
		}
	}
	hasImage(o.Pod, "")
	says("not known yet", "")
	hasImage(o.Pod, "m@sha256:1")
	says("before the order", "m@sha256:1")
	hasOrder("")(&o)
	hasImage(o.Pod, "m@sha256:2")
	says("before it is taken", "m@sha256:2")
	hasOrder(decide.CondReady)(&o)
	lists(&o)
	other := o.Pod.DeepCopy()
	other.UID = "another"
	hasImage(other, "m@sha256:3")
	was := o.Pod
	o.Pod = other
	says("in another pod", "m@sha256:2")
	o.Pod = was
	hasImage(o.Pod, "m@sha256:4")
	says("after it was taken", "m@sha256:2")
	o.Object.Status.Images = nil
	says("by an earlier build", "m@sha256:4")
	byPod(&o)
	says("by its pod", "m@sha256:4")
	if o.Object.Status.VMName != "vm" {
		t.Errorf("of VM %q", o.Object.Status.VMName)
	}
}
