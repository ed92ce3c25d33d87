package decide_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// orderFor is an order of a person for a VM as it was observed.
func orderFor(kind v1alpha1.OperationKind, vm decide.VM) decide.Operation {
	o := operationWorld()
	o.Object.Spec.Kind, o.Object.Spec.NodeName = kind, ""
	o.VM, o.Record, o.Fenced, o.Now = vm.Object, vm.Record, vm.Fenced, vm.Now
	o.Orders = append([]v1alpha1.VMOperation{*o.Object}, vm.Orders...)
	return o
}

// An order for a VM whose node is lost is told so. It fails where the VM stays with that node, and goes on once the VM
// is elsewhere. A VM that has slept is woken, though its source has not cleaned up.
func TestOrdersOfALostNode(t *testing.T) {
	const sending, cleaning = nodev1.Phase_PHASE_TRANSFERRING, nodev1.Phase_PHASE_CLEANING
	older := func(o *decide.VM) {
		byOrder(o)
		o.Orders[0].CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	}
	waits := want{do: decide.None, waits: decide.ReasonOperation}
	strands := want{do: decide.None, waits: decide.ReasonNodeLost, refused: true}
	sleeps := want{do: decide.None, waits: decide.ReasonVMSleeps, refused: true}
	for name, test := range map[string]struct {
		kind   v1alpha1.OperationKind
		change func(*decide.VM)
		want   want
		says   string
	}{
		"it stays there": {v1alpha1.KindHibernate, lostAtA, strands, "spec.onNodeLoss"},
		"it stays there with an operation": {v1alpha1.KindMigrate, drivenBy(atA, nodev1.Kind_KIND_CHECKPOINT, sending),
			strands, "spec.onNodeLoss"},
		"it is restored first": {v1alpha1.KindHibernate, both(lostAtA, restores),
			want{do: decide.None, waits: decide.ReasonNodeLost}, "node a is lost: the VM wakes elsewhere first"},
		"nobody vouches": {v1alpha1.KindCheckpoint, both(drivenBy(atA, nodev1.Kind_KIND_HIBERNATE, sending), restores,
			notFenced), waits, "op1"},
		"it has slept": {v1alpha1.KindWake, drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE, cleaning),
			want{do: decide.Order, detail: "Wake "}, ""},
		"it has slept, by an order": {v1alpha1.KindWake, both(drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE, cleaning),
			older), want{do: decide.Order, detail: "Wake "}, ""},
		"it has slept for long, and nobody vouches": {v1alpha1.KindWake, both(drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE,
			cleaning), notFenced, longAgo), want{do: decide.Order, detail: "Wake "}, ""},
		"it has just slept": {v1alpha1.KindWake, both(drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE, cleaning), notFenced),
			waits, "op1"},
		"it has slept, and is to move": {v1alpha1.KindMigrate, drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE, cleaning),
			sleeps, "a wake alone"},
		"it has slept for long, and is to be saved": {v1alpha1.KindCheckpoint, both(drivenBy(asleep,
			nodev1.Kind_KIND_HIBERNATE, cleaning), notFenced, longAgo), sleeps, "a wake alone"},
		"it has just slept, and is to be saved": {v1alpha1.KindCheckpoint, both(drivenBy(asleep,
			nodev1.Kind_KIND_HIBERNATE, cleaning), notFenced), waits, "op1"},
		"it wakes there": {v1alpha1.KindHibernate, drivenBy(asleep, nodev1.Kind_KIND_WAKE, sending), waits, "op1"},
	} {
		t.Run(name, func(t *testing.T) {
			next := decide.NextOperation(orderFor(test.kind, world(test.change)))
			test.want.check(t, next)
			if !strings.Contains(next.Message, test.says) {
				t.Errorf("it says %q, want %q", next.Message, test.says)
			}
		})
	}
	o := orderFor(v1alpha1.KindWake, world(drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE, cleaning), notFenced))
	if next := decide.NextOperation(o); next.After <= 0 {
		t.Errorf("a wake that the clean-up holds up is looked at again after %v", next.After)
	}
}
