package decide_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// orphan is a VM that was a member of a set, which went without it: no owner and no label say so any more.
func orphan(o *decide.VM) {
	o.Object.Name, o.Object.Status.RecordUID = "set-worker", "s1.worker"
	o.Record.Vm.Id, o.Record.Uid = "ns.set-worker", "s1.worker"
	for i := range o.Pods {
		o.Pods[i].Labels[pods.LabelVM], o.Pods[i].Labels[pods.LabelRecordUID] = "set-worker", "s1.worker"
	}
}

// A member that has lost its owner, or its label, keeps its record. It wakes, it moves, and it ends with it.
func TestOrphanKeepsItsRecord(t *testing.T) {
	strange := func(name, uid, status string) func(*decide.VM) {
		return func(o *decide.VM) {
			owned(asleep)(o)
			orphan(o)
			o.Object.Name, o.Record.Vm.Id, o.Record.Uid, o.Object.Status.RecordUID = name, "ns."+name, uid, status
		}
	}
	refused := want{do: decide.None, waits: decide.ReasonRecordOfAnother, refused: true}
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"it sleeps":             {both(owned(asleep), orphan), want{do: decide.MakeOperation, detail: "Wake "}},
		"it sleeps, is deleted": {both(both(owned(asleep), orphan), deleted), want{do: decide.RemoveRecord}},
		"it runs": {both(orphan, mode(v1alpha1.ModeHibernated)),
			want{do: decide.MakeOperation, detail: "Hibernate "}},
		"it runs, and a build before has emptied its status": {func(o *decide.VM) {
			orphan(o)
			o.Object.Status.RecordUID, o.Object.Spec.OperatingMode = "", v1alpha1.ModeHibernated
		}, want{do: decide.MakeOperation, detail: "Hibernate "}},
		"it has lost its owner, and has its label": {func(o *decide.VM) {
			owned(asleep)(o)
			orphan(o)
			o.Object.Labels = map[string]string{pods.LabelMember: "worker"}
		}, want{do: decide.MakeOperation, detail: "Wake "}},
		"the status is another one's": {strange("set-worker", "s1.worker", "s2.worker"), refused},
		"the status is empty":         {strange("set-worker", "s1.worker", ""), refused},
		"the status is a copy, under a name that the member never had": {strange("copy", "s1.worker", "s1.worker"),
			refused},
		"the status is a copy of what was no member": {strange("set-worker", "u0", "u0"), refused},
		"a set without a name":                       {strange("-worker", "s1.worker", "s1.worker"), refused},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
	o := world(orphan)
	o.Object.Status = decide.VMStatus(o, decide.NextVM(o))
	if s := o.Object.Status; s.RecordUID != "s1.worker" || s.Phase != v1alpha1.VMRunning {
		t.Errorf("status %+v", s)
	}
	want{do: decide.None}.check(t, decide.NextVM(o))
}

// A VM runs in a pod, and by the record of that pod it is not the VM of the object. So no object gives it up: it sleeps
// when the pod is deleted, and it is not evicted.
func TestDoubtEndsNoVM(t *testing.T) {
	vm := world(orphan)
	vm.Object.Status.RecordUID = ""
	end, grace := metav1.NewTime(now.Add(time.Minute)), int64(60)
	pod := &vm.Pods[0]
	pod.Spec.TerminationGracePeriodSeconds = &grace
	pod.Annotations = map[string]string{pods.AnnotationOnStop: "hibernate"}
	evicted := decide.Eviction{Pod: pod, VM: vm.Object, Record: vm.Record, Engine: true, OnStop: true, MinGrace: 30}
	for _, lane := range []v1alpha1.Lane{v1alpha1.LaneAuto, v1alpha1.LaneCold, v1alpha1.LaneLive} {
		vm.Object.Spec.Migration.Lane = lane
		if got := decide.NextEviction(evicted); got.Allow || got.Order || got.Message == "" {
			t.Errorf("lane %s: the eviction is answered %+v", lane, got)
		}
	}
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &end, &grace
	stop := decide.Stop{Node: "a", Asked: &nodev1.Pod{Namespace: "ns", Name: pod.Name, Uid: string(pod.UID)},
		UID: "s1.worker", Pod: pod, VM: vm.Object, Record: vm.Record, Now: now}
	if got := decide.NextStop(stop); !got.Hibernate || got.Grace != time.Minute {
		t.Errorf("the stop is answered %+v", got)
	}
}

// A move that an eviction ordered while its record was another VM's, or away, is no proof that the VM does not move
// live.
func TestARefusedOrderIsNoProof(t *testing.T) {
	for _, why := range []decide.Reason{decide.ReasonRecordOfAnother, decide.ReasonRecordMissing} {
		vm := world()
		vm.Pods[0].Annotations = map[string]string{pods.AnnotationOnStop: "hibernate"}
		o := decide.Eviction{Pod: &vm.Pods[0], VM: vm.Object, Record: vm.Record, Engine: true, OnStop: true, MinGrace: 30}
		op := v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Name: "vm-evict-g3-0", UID: "o9"}}
		refused := decide.Action{Do: decide.None, Waits: why, Refused: true, Message: "no"}
		op.Status = decide.OperationStatus(decide.Operation{Object: &op}, refused, metav1.NewTime(now))
		o.Orders = []v1alpha1.VMOperation{op}
		if got := decide.NextEviction(o); got.Allow || !got.Order {
			t.Errorf("after %s: answered %+v", why, got)
		}
	}
}
