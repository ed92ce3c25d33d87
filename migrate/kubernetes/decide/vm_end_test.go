package decide_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A deleted VM goes in this order: its operation, its pod, its record, its finalizer.
func TestDeletedVM(t *testing.T) {
	plain := world().Object
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"it moves": {change: moving(nodev1.Phase_PHASE_PENDING), want: want{do: decide.OrderAbort, detail: "op1"}},
		"it has moved": {change: moving(nodev1.Phase_PHASE_CLEANING),
			want: want{do: decide.None, waits: decide.ReasonOperation}},
		"it runs": {change: func(*decide.VM) {}, want: want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"its pod ends": {change: func(o *decide.VM) { ending(&o.Pods[0]) },
			want: want{do: decide.None, waits: decide.ReasonPodsAlive}},
		"its node is mum": {change: func(o *decide.VM) { o.Pods = nil },
			want: want{do: decide.None, waits: decide.ReasonNodeSilent}},
		"its node is lost": {change: func(o *decide.VM) { o.Pods, o.Fenced = nil, true },
			want: want{do: decide.OrderGiveUp, detail: "a"}},
		"its node is lost while it moves": {change: func(o *decide.VM) {
			moving(nodev1.Phase_PHASE_TRANSFERRING)(o)
			o.Pods, o.Fenced = nil, true
		}, want: want{do: decide.OrderGiveUp, detail: "a"}},
		"its node is lost while it goes to sleep": {change: func(o *decide.VM) {
			o.Record.Operation = &nodev1.Operation{Id: "op1", Kind: nodev1.Kind_KIND_HIBERNATE, Source: "a",
				Phase: nodev1.Phase_PHASE_SWITCHING}
			o.Pods, o.Fenced = nil, true
		}, want: want{do: decide.OrderGiveUp, detail: "a"}},
		"its node is lost before the hibernate is cleaned up": {change: func(o *decide.VM) {
			owned(asleep)(o)
			o.Record.Operation = &nodev1.Operation{Id: "op1", Kind: nodev1.Kind_KIND_HIBERNATE, Source: "a",
				Phase: nodev1.Phase_PHASE_CLEANING}
			o.Pods, o.Fenced = nil, true
		}, want: want{do: decide.OrderGiveUp, detail: "a"}},
		"it has stopped": {change: owned(nil), want: want{do: decide.RemoveRecord}},
		"it sleeps":      {change: owned(asleep), want: want{do: decide.RemoveRecord}},
		"its record is gone": {change: func(o *decide.VM) { o.Record, o.Pods = nil, nil },
			want: want{do: decide.DropFinalizer}},
		"its pod is there still": {change: func(o *decide.VM) { o.Record = nil },
			want: want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"a pod that never got a node": {change: owned(nil, pod(plain, "vm-g4-a0", 4, "", corev1.PodPending)),
			want: want{do: decide.DeletePod, detail: "vm-g4-a0"}},
		"without our finalizer": {change: func(o *decide.VM) { o.Object.Finalizers = nil }, want: want{do: decide.None}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change, deleted))) })
	}
	o := world(moving(nodev1.Phase_PHASE_PENDING), deleted)
	o.Engine = false
	want{do: decide.None, waits: decide.ReasonEngineMissing, refused: true}.check(t, decide.NextVM(o))
}

// The pod of a deleted VM at a fenced node ends at once, and holds nothing up: no kubelet says that it has ended.
func TestDeletedVMAtAFencedNode(t *testing.T) {
	atOnce := func(o *decide.VM) { o.Pods[0].DeletionGracePeriodSeconds = new(int64) }
	elsewhere := func(o *decide.VM) { o.Pods[0].Spec.NodeName = "b" }
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
		atOnce bool
	}{
		"its pod is there": {fenced, want{do: decide.DeletePod, detail: "vm-g3-a0"}, true},
		"its pod ends": {both(fenced, func(o *decide.VM) { ending(&o.Pods[0]) }),
			want{do: decide.DeletePod, detail: "vm-g3-a0"}, true},
		"a finalizer holds its pod": {both(fenced, atOnce, func(o *decide.VM) { ending(&o.Pods[0]) }),
			want{do: decide.OrderGiveUp, detail: "a"}, false},
		"its pod is elsewhere": {both(fenced, elsewhere), want{do: decide.DeletePod, detail: "vm-g3-a0"}, false},
		"its pod ends elsewhere": {both(fenced, elsewhere, func(o *decide.VM) { ending(&o.Pods[0]) }),
			want{do: decide.None, waits: decide.ReasonPodsAlive}, false},
		"nobody vouches": {func(*decide.VM) {}, want{do: decide.DeletePod, detail: "vm-g3-a0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			next := decide.NextVM(world(test.change, deleted))
			if test.want.check(t, next); next.AtOnce != test.atOnce {
				t.Errorf("at once: %t", next.AtOnce)
			}
		})
	}
}

func fenced(o *decide.VM) { o.Fenced = true }

// What happens to objects in the wild makes no second VM, and gives no state up.
func TestObjectsInTheWild(t *testing.T) {
	another := func(owner *nodev1.Owner) func(*decide.VM) {
		return func(o *decide.VM) {
			o.Record = record(owner, 3, nil)
			o.Record.Uid = "u0"
			if o.Record.GetOwner().GetDigest() != "" {
				o.Record.Snapshots = []*nodev1.SnapshotRef{{Digest: digest}}
			}
			o.Pods = nil
		}
	}
	before := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "u0"}}
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"the finalizer was stripped": {change: func(o *decide.VM) { o.Object.Finalizers = nil },
			want: want{do: decide.AddFinalizer}},
		"made again under its name, and the old one runs": {change: another(atA),
			want: want{do: decide.None, waits: decide.ReasonRecordOfAnother, refused: true}},
		"made again under its name, and the old one sleeps": {change: another(asleep),
			want: want{do: decide.None, waits: decide.ReasonRecordOfAnother, refused: true}},
		"made again under its name, and the old one has ended": {change: another(nil), want: want{do: decide.RemoveRecord}},
		"made again under its name, and the old pod ends": {change: both(another(nil), func(o *decide.VM) {
			o.Pods = []corev1.Pod{pod(before, "vm-g3-a0", 3, "a", corev1.PodRunning)}
		}), want: want{do: decide.None, waits: decide.ReasonPodsAlive}},
		"the record is gone, and the pod is not": {change: func(o *decide.VM) { o.Record = nil },
			want: want{do: decide.None, waits: decide.ReasonRecordMissing, refused: true}},
		"the record of a VM that slept was taken away": {change: taken(asleep),
			want: want{do: decide.None, waits: decide.ReasonRecordMissing, refused: true}},
		"the record of a VM that ran was taken away, and its pod is gone": {change: taken(atA),
			want: want{do: decide.None, waits: decide.ReasonRecordMissing, refused: true}},
		"the record of a VM that had ended was taken away": {change: taken(nil), want: want{do: decide.EnsureRecord}},
		"the status of a VM that had this name before was copied": {change: both(taken(asleep), func(o *decide.VM) {
			o.Object.UID = "u2"
		}), want: want{do: decide.EnsureRecord}},
		"restored without status": {change: func(o *decide.VM) { o.Object.Status = v1alpha1.VirtualMachineStatus{} },
			want: want{do: decide.None}},
		"the status was edited": {change: func(o *decide.VM) {
			o.Object.Status = v1alpha1.VirtualMachineStatus{Phase: v1alpha1.VMStopped, Generation: 99,
				Owner: v1alpha1.VMOwner{Digest: digest}, Pod: &v1alpha1.PodRef{Name: "x", UID: "y"}}
		}, want: want{do: decide.None}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
	o := world(another(asleep), deleted)
	want{do: decide.DropFinalizer}.check(t, decide.NextVM(o)) // the record, which is another VM's, stays
}

// taken is a VM whose record is gone, and whose status says what it said last.
func taken(owner *nodev1.Owner) func(*decide.VM) {
	return func(o *decide.VM) {
		o.Record = record(owner, 3, nil)
		o.Object.Status = decide.VMStatus(*o, decide.NextVM(*o))
		o.Record, o.Pods = nil, nil
	}
}

// A VM whose record was taken away by force says where its state was, however often it is looked at. It can be deleted.
func TestRecordTakenAway(t *testing.T) {
	o := world(taken(asleep))
	for range 3 {
		o.Object.Status = decide.VMStatus(o, decide.NextVM(o))
	}
	s := o.Object.Status
	lost := meta.FindStatusCondition(s.Conditions, decide.CondLost)
	if s.Phase != v1alpha1.VMLost || s.Owner.Digest != digest || s.RecordUID != "u1" || lost == nil ||
		!strings.Contains(lost.Message, digest) {
		t.Errorf("status %+v", s)
	}
	deleted(&o)
	want{do: decide.DropFinalizer}.check(t, decide.NextVM(o))
	o.Object.DeletionTimestamp, o.Record = nil, record(asleep, 3, nil) // put back
	if next := decide.NextVM(o); next.Do != decide.MakeOperation || next.Kind != v1alpha1.KindWake {
		t.Errorf("with its record it is %+v", next)
	}
}

// The status is a copy: what a hand wrote there is gone, and nothing is kept of it.
func TestStatusIsACopy(t *testing.T) {
	o := world()
	good := decide.VMStatus(o, decide.NextVM(o))
	if good.Phase != v1alpha1.VMRunning || good.Owner.Node != "a" || good.Pod.Name != "vm-g3-a0" ||
		good.Generation != 3 || good.ObservedGeneration != 4 || good.RecordUID != "u1" {
		t.Errorf("status %+v", good)
	}
	o.Object.Status = *good.DeepCopy()
	o.Object.Status.Phase, o.Object.Status.Owner = v1alpha1.VMLost, v1alpha1.VMOwner{Digest: "sha256:forged"}
	o.Object.Status.Pod, o.Object.Status.Addresses = nil, []string{"1.2.3.4"}
	o.Object.Status.LastSnapshot = &v1alpha1.SnapshotStatus{Digest: "forged"}
	o.Object.Status.Conditions = append(o.Object.Status.Conditions, metav1.Condition{Type: "Forged", Status: "True"})
	if got := decide.VMStatus(o, decide.NextVM(o)); !equal(got, good) {
		t.Errorf("status %+v, want %+v", got, good)
	}
}

// A delete that the registry refuses is done all the same, and said: the order has succeeded, the VM goes.
func TestDelete403(t *testing.T) {
	o := operationWorld()
	o.Found = &nodev1.Operation{Id: "o1", Kind: nodev1.Kind_KIND_HIBERNATE, Phase: nodev1.Phase_PHASE_SUCCEEDED,
		CleanupPending: true, Reason: "403 Forbidden"}
	s := decide.OperationStatus(o, decide.NextOperation(o), metav1.NewTime(now))
	said := false
	for _, c := range s.Conditions {
		said = said || c.Type == decide.CondCleanupPending && c.Status == metav1.ConditionTrue &&
			c.Reason == string(decide.ReasonDeleteRefused) && c.Message == "403 Forbidden"
	}
	if s.Phase != v1alpha1.MigrationSucceeded || !said {
		t.Errorf("status %+v", s)
	}
	vm := world(owned(asleep), deleted) // what is owed stays in the tombstone, and holds nothing up
	want{do: decide.RemoveRecord}.check(t, decide.NextVM(vm))
	vm.Record = nil
	want{do: decide.DropFinalizer}.check(t, decide.NextVM(vm))
}

// A member that is deleted while its set is suspended keeps its record: it is made again, asleep, and wakes with the
// set.
func TestMemberDeletedSuspended(t *testing.T) {
	suspended := set()
	suspended.Spec.Suspend = true
	o := world(owned(asleep), worker(suspended), deleted)
	want{do: decide.DropFinalizer}.check(t, decide.NextVM(o))
	o.Object.OwnerReferences, o.Object.Labels = nil, nil // somebody has taken off what tells it as a member
	o.Object.Status.RecordUID = "s1.worker"
	want{do: decide.DropFinalizer}.check(t, decide.NextVM(o))
	o.Set = nil
	want{do: decide.RemoveRecord}.check(t, decide.NextVM(o))
	o = world(owned(asleep), worker(goingSet()), deleted)
	want{do: decide.RemoveRecord}.check(t, decide.NextVM(o))
	lost := world(owned(atA), worker(suspended), deleted)
	lost.Fenced = true
	want{do: decide.DropFinalizer}.check(t, decide.NextVM(lost))
	lost = world(owned(atA), worker(goingSet()), deleted)
	lost.Fenced = true
	want{do: decide.OrderGiveUp, detail: "a"}.check(t, decide.NextVM(lost))

	all := setWorld(asleep)
	all.Object.Spec.Suspend = true
	delete(all.VMs, "worker")
	next := decide.NextSet(all)
	want{do: decide.MakeVM, detail: "set-worker Hibernated"}.check(t, next)
	again := next.VM
	again.UID = types.UID("another")
	if member := pods.Member(again, suspended); member != "worker" {
		t.Errorf("the new object is member %q", member)
	}
	all.Object.Spec.Suspend = false // while it is away
	want{do: decide.MakeVM, detail: "set-worker Hibernated"}.check(t, decide.NextSet(all))

	woken := world(owned(asleep), worker(suspended))
	again.Finalizers, again.Spec.OperatingMode = o.Object.Finalizers, v1alpha1.ModeRunning
	woken.Object = again
	want{do: decide.MakeOperation, detail: "Wake "}.check(t, decide.NextVM(woken))
}

func goingSet() *v1alpha1.VirtualMachineSet {
	s, at := set(), metav1.NewTime(now)
	s.DeletionTimestamp = &at
	return s
}

// worker is a VM that is member worker of a set, with its record.
func worker(of *v1alpha1.VirtualMachineSet) func(*decide.VM) {
	return func(o *decide.VM) {
		o.Object.Name, o.Object.Labels = "set-worker", map[string]string{pods.LabelMember: "worker"}
		o.Object.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of,
			v1alpha1.GroupVersion.WithKind("VirtualMachineSet"))}
		o.Set = of
		if o.Record != nil {
			o.Record.Vm.Id, o.Record.Uid = "ns.set-worker", "s1.worker"
		}
		for i := range o.Pods {
			o.Pods[i].Labels[pods.LabelVM], o.Pods[i].Labels[pods.LabelRecordUID] = "set-worker", "s1.worker"
		}
	}
}
