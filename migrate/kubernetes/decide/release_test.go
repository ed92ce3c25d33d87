package decide_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node that does not release a VM that moved away is shown after a minute, of the VM and of the order. The VM runs
// elsewhere meanwhile. When the node has released it, that is shown no more.
func TestStuckReleaseIsShown(t *testing.T) {
	for name, test := range map[string]struct {
		phase     nodev1.Phase
		committed time.Duration // before now; 0: not yet
		shown     bool
		after     time.Duration
	}{
		"just committed":      {nodev1.Phase_PHASE_CLEANING, 20 * time.Second, false, 40 * time.Second},
		"stuck":               {nodev1.Phase_PHASE_CLEANING, 2 * time.Minute, true, 0},
		"stuck at the commit": {nodev1.Phase_PHASE_COMMITTED, 2 * time.Minute, true, 0},
		"on its way":          {nodev1.Phase_PHASE_TRANSFERRING, 0, false, 0},
	} {
		op := operation(nodev1.Kind_KIND_MIGRATE, test.phase)
		op.Source, op.Destination = "a", "b"
		if test.committed > 0 {
			op.CommittedUnixNano = now.Add(-test.committed).UnixNano()
		}
		vm := world()
		vm.Record.Operation, vm.Record.Owner = op, &nodev1.Owner{Node: "b"}
		order := operationWorld()
		order.Found, order.Now = op, now
		next := decide.NextOperation(order)
		said := decide.OperationStatus(order, next, metav1.NewTime(now)).Conditions
		for of, all := range map[string][]metav1.Condition{"VM": decide.VMStatus(vm, decide.NextVM(vm)).Conditions,
			"order": said} {
			c := meta.FindStatusCondition(all, decide.CondCleanupPending)
			if test.shown != (c != nil) || c != nil && (c.Status != metav1.ConditionTrue || c.Reason != "NodeSilent" ||
				!strings.Contains(c.Message, "node a")) {
				t.Errorf("%s: the %s shows %+v", name, of, c)
			}
		}
		if next.After != test.after {
			t.Errorf("%s: looked at again after %v, want %v", name, next.After, test.after)
		}
	}
}
