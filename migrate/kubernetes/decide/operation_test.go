package decide_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func operationWorld() decide.Operation {
	o := decide.Operation{Object: &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Name: "order", UID: "o1",
		CreationTimestamp: metav1.NewTime(now)}, Spec: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindMigrate, NodeName: "b",
		VMRef: v1alpha1.VMRef{Name: "vm", UID: "u1"}, Priority: v1alpha1.PriorityUser}},
		VM: world().Object, Record: record(atA, 3, nil), Engine: true}
	o.Orders = []v1alpha1.VMOperation{*o.Object}
	return o
}

func TestNextOperation(t *testing.T) {
	other := func(change func(*v1alpha1.VMOperation)) func(*decide.Operation) {
		return func(o *decide.Operation) {
			op := *o.Object.DeepCopy()
			op.Name, op.UID = "other", "o2"
			change(&op)
			o.Orders = append(o.Orders, op)
		}
	}
	for name, test := range map[string]struct {
		change func(*decide.Operation)
		want   want
	}{
		"an order": {change: func(*decide.Operation) {}, want: want{do: decide.Order, detail: "Migrate b"}},
		"no VM": {change: func(o *decide.Operation) { o.VM = nil },
			want: want{do: decide.None, waits: decide.ReasonInvalid, refused: true}},
		"another VM by now": {change: func(o *decide.Operation) { o.VM.UID = "u2" },
			want: want{do: decide.None, waits: decide.ReasonInvalid, refused: true}},
		"the record is another VM's": {change: func(o *decide.Operation) { o.Record.Uid = "u0" },
			want: want{do: decide.None, waits: decide.ReasonRecordOfAnother, refused: true}},
		"no engine": {change: func(o *decide.Operation) { o.Engine = false },
			want: want{do: decide.None, waits: decide.ReasonEngineMissing, refused: true}},
		"called off before it began": {change: func(o *decide.Operation) { o.Object.Spec.Abort = true },
			want: want{do: decide.None, waits: decide.ReasonEnded, refused: true}},
		"another one is at work": {change: func(o *decide.Operation) {
			o.Record.Operation = operation(nodev1.Kind_KIND_CHECKPOINT, nodev1.Phase_PHASE_PENDING)
		}, want: want{do: decide.None, waits: decide.ReasonOperation}},
		"an urgent one comes first": {change: other(func(op *v1alpha1.VMOperation) {
			op.Spec.Priority = v1alpha1.PriorityCritical
		}), want: want{do: decide.None, waits: decide.ReasonOperation}},
		"an older one comes first": {change: other(func(op *v1alpha1.VMOperation) {
			op.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		}), want: want{do: decide.None, waits: decide.ReasonOperation}},
		"a younger one does not": {change: other(func(op *v1alpha1.VMOperation) {
			op.CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
		}), want: want{do: decide.Order, detail: "Migrate b"}},
		"it is at work": {change: found(nodev1.Phase_PHASE_TRANSFERRING),
			want: want{do: decide.None, waits: decide.ReasonOperation}},
		"it is called off": {change: func(o *decide.Operation) {
			found(nodev1.Phase_PHASE_TRANSFERRING)(o)
			o.Object.Spec.Abort = true
		}, want: want{do: decide.OrderAbort, detail: "o1"}},
		"it is called off too late": {change: func(o *decide.Operation) {
			found(nodev1.Phase_PHASE_COMMITTED)(o)
			o.Object.Spec.Abort = true
		}, want: want{do: decide.None, waits: decide.ReasonOperation}},
		"it is done": {change: found(nodev1.Phase_PHASE_SUCCEEDED), want: want{do: decide.None}},
	} {
		t.Run(name, func(t *testing.T) {
			o := operationWorld()
			test.change(&o)
			test.want.check(t, decide.NextOperation(o))
		})
	}
}

func found(phase nodev1.Phase) func(*decide.Operation) {
	return func(o *decide.Operation) {
		o.Found = &nodev1.Operation{Id: "o1", Kind: nodev1.Kind_KIND_MIGRATE, Phase: phase}
	}
}

// Ten closed orders of a VM are kept; the oldest goes.
func TestClosedOrdersAreForgotten(t *testing.T) {
	o := operationWorld()
	for i := range 10 {
		op := *o.Object.DeepCopy()
		op.Name, op.UID = fmt.Sprint("later-", i), types.UID(fmt.Sprint(i))
		op.CreationTimestamp, op.Status.Phase = metav1.NewTime(now.Add(time.Minute)), v1alpha1.MigrationSucceeded
		o.Orders = append(o.Orders, op)
	}
	want{do: decide.Order, detail: "Migrate b"}.check(t, decide.NextOperation(o))
	o.Object.Status.Phase, o.Orders[0].Status.Phase = v1alpha1.MigrationFailed, v1alpha1.MigrationFailed
	want{do: decide.DeleteOperation, detail: "order"}.check(t, decide.NextOperation(o))
	o.Object = &o.Orders[5]
	want{do: decide.None}.check(t, decide.NextOperation(o))
}

// What a status says changes the status, and not the object that it is compared with.
func TestOperationStatusIsAnother(t *testing.T) {
	o := operationWorld()
	wait := func(why string) decide.Action { return decide.Action{Do: decide.None, Message: why} }
	o.Object.Status = decide.OperationStatus(o, wait("one"), metav1.NewTime(now))
	if s := decide.OperationStatus(o, wait("two"), metav1.NewTime(now)); equal(s, o.Object.Status) ||
		o.Object.Status.Conditions[0].Message != "one" {
		t.Errorf("the status was %+v, and is %+v", o.Object.Status, s)
	}
}

// Every phase of the record has its name for people, and the end of an order that never came to the records stays.
func TestOperationStatus(t *testing.T) {
	for number := range nodev1.Phase_name {
		phase := nodev1.Phase(number)
		if phase == nodev1.Phase_PHASE_UNSPECIFIED {
			continue
		}
		o := operationWorld()
		found(phase)(&o)
		if s := decide.OperationStatus(o, decide.NextOperation(o), metav1.NewTime(now)); s.Phase == "" || s.Step == "" {
			t.Errorf("%s: %+v", phase, s)
		}
	}
	o := operationWorld()
	o.Engine = false
	s := decide.OperationStatus(o, decide.NextOperation(o), metav1.NewTime(now))
	if s.Phase != v1alpha1.MigrationFailed || s.Class != "not implemented" || s.CompletionTime == nil {
		t.Errorf("refused: %+v", s)
	}
	o.Object.Status, o.Engine = s, true
	if again := decide.OperationStatus(o, decide.NextOperation(o), metav1.NewTime(now.Add(time.Hour))); !equal(again, s) {
		t.Errorf("a closed order has become %+v", again)
	}
	want{do: decide.None}.check(t, decide.NextOperation(o))
}
