package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	keptOrders    = 10 // of a VM that are closed
	nanosOfSecond = 1_000_000_000
)

// Operation is what was observed of a VMOperation.
type Operation struct {
	Object *v1alpha1.VMOperation
	VM     *v1alpha1.VirtualMachine    // nil: there is none of that name
	Set    *v1alpha1.VirtualMachineSet // that the VM may be a member of; nil: none
	Record *nodev1.Record              // of that VM; nil: there is none
	Found  *nodev1.Operation           // with this order's uid as its id, open or closed; nil: the records know none
	Unread error                       // as in VM
	Orders []v1alpha1.VMOperation      // of the same VM, this one too
	Pod    *corev1.Pod                 // of the attempt; nil: there is none
	Engine bool
	Fenced bool // as in VM
	Now    time.Time
}

// NextOperation decides what is done next of an order.
func NextOperation(o Operation) Action {
	op := o.Object
	switch {
	case o.Unread != nil:
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	case op.DeletionTimestamp != nil:
		return Action{Do: None}
	case o.Found != nil && !transition.Settled(o.Found.GetPhase()):
		if op.Spec.Abort && !o.Found.GetCancelled() && !transition.Committed(o.Found.GetPhase()) && o.Engine {
			return Action{Do: OrderAbort, Operation: o.Found.GetId()}
		}
		waits := wait(ReasonOperation, "")
		_, waits.After = unreleased(o.Found, o.Now)
		return waits
	case o.Found != nil || Closed(op):
		return o.forget()
	}
	if err := o.refused(); err.Waits != "" {
		return err
	}
	return o.begins()
}

// begins is an order whose turn may have come. A wake of a VM that sleeps waits for no node that has still to clean up,
// and does not. Another order for such a VM fails, as it does once the clean-up is done.
func (o Operation) begins() Action {
	op := o.Object
	open := o.Record.GetOperation()
	switch asleep := durable(o.Record, o.Fenced, o.Now); {
	case asleep && op.Spec.Kind != v1alpha1.KindWake: // else the wake waits for it, and it for a source that may be gone
		return refuse(ReasonVMSleeps, "the VM sleeps: of such a VM a wake alone can be ordered")
	case open != nil && !asleep:
		waits := wait(ReasonOperation, "operation "+open.GetId()+" of this VM ends first")
		_, waits.After = unreleased(open, o.Now)
		return waits
	}
	for i := range o.Orders {
		other := &o.Orders[i]
		closes := open != nil && string(other.UID) == open.GetId()
		if other.UID != op.UID && !closes && !Closed(other) && other.DeletionTimestamp == nil && before(other, op) {
			return wait(ReasonOperation, "VMOperation "+other.Name+" of this VM comes first")
		}
	}
	return Action{Do: Order, Kind: op.Spec.Kind, Node: op.Spec.NodeName, Operation: string(op.UID)}
}

// refused is why an order that has not begun comes to nothing.
func (o Operation) refused() Action {
	op := o.Object
	switch {
	case o.VM == nil:
		return refuse(ReasonInvalid, fmt.Sprintf("there is no VirtualMachine %s", op.Spec.VMRef.Name))
	case op.Spec.VMRef.UID != "" && op.Spec.VMRef.UID != string(o.VM.UID):
		return refuse(ReasonInvalid, fmt.Sprintf("VirtualMachine %s is another one by now: its uid is %s",
			op.Spec.VMRef.Name, o.VM.UID))
	case o.Record == nil:
		return refuse(ReasonRecordMissing, fmt.Sprintf("VM %s has no VMRecord: it never ran, or the record was taken away",
			op.Spec.VMRef.Name))
	case !pods.Has(o.VM, o.Set, o.Record):
		return refuse(ReasonRecordOfAnother, "the record of this name is of another VM")
	case op.Spec.Abort:
		return refuse(ReasonEnded, "it was called off before it began")
	case o.overtaken() != "":
		return refuse(ReasonEnded, o.overtaken())
	case !o.Engine:
		return missing(string(op.Spec.Kind) + " of VM " + op.Spec.VMRef.Name)
	}
	return o.lost()
}

// lost is an order for a VM that a lost node has: it fails if the VM stays there.
func (o Operation) lost() Action {
	switch {
	case !o.Fenced, o.Record.GetOwner().GetNode() == "":
		return Action{Do: None}
	case o.VM.Spec.OnNodeLoss == v1alpha1.NodeLossRestore:
		return wait(ReasonNodeLost, restores(o.Record))
	default:
		return refuse(ReasonNodeLost, strands(o.Record))
	}
}

// priorities by which orders of a VM come.
var priorities = []v1alpha1.Priority{v1alpha1.PriorityCritical, v1alpha1.PriorityUser, v1alpha1.PriorityMaintenance}

func before(a, b *v1alpha1.VMOperation) bool {
	if p, q := slices.Index(priorities, a.Spec.Priority), slices.Index(priorities, b.Spec.Priority); p != q {
		return p < q
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// forget removes the oldest of too many closed orders.
func (o Operation) forget() Action {
	var closed []v1alpha1.VMOperation
	for _, other := range o.Orders {
		if Closed(&other) && other.DeletionTimestamp == nil {
			closed = append(closed, other)
		}
	}
	if len(closed) <= keptOrders {
		return Action{Do: None}
	}
	oldest := slices.MinFunc(closed, func(a, b v1alpha1.VMOperation) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	if oldest.UID != o.Object.UID {
		return Action{Do: None}
	}
	return Action{Do: DeleteOperation, Operation: oldest.Name}
}

// migrationPhases are KubeVirt's names for the phases of the record.
var migrationPhases = map[nodev1.Phase]v1alpha1.MigrationPhase{
	nodev1.Phase_PHASE_PENDING:      v1alpha1.MigrationPending,
	nodev1.Phase_PHASE_PREPARING:    v1alpha1.MigrationPreparingTarget,
	nodev1.Phase_PHASE_TRANSFERRING: v1alpha1.MigrationRunning,
	nodev1.Phase_PHASE_SWITCHING:    v1alpha1.MigrationRunning,
	nodev1.Phase_PHASE_COMMITTED:    v1alpha1.MigrationRunning,
	nodev1.Phase_PHASE_CLEANING:     v1alpha1.MigrationRunning,
	nodev1.Phase_PHASE_SUCCEEDED:    v1alpha1.MigrationSucceeded,
	nodev1.Phase_PHASE_ABORTING:     v1alpha1.MigrationRunning,
	nodev1.Phase_PHASE_REVERTING:    v1alpha1.MigrationRunning,
	nodev1.Phase_PHASE_FAILED:       v1alpha1.MigrationFailed,
	nodev1.Phase_PHASE_ABORTED:      v1alpha1.MigrationFailed,
	nodev1.Phase_PHASE_LOST_AT_DEST: v1alpha1.MigrationFailed,
	nodev1.Phase_PHASE_LOST_AT_SRC:  v1alpha1.MigrationFailed,
}

// OperationStatus is what the status says of what was observed, and of what is done next. What the records know, they
// alone say; of an order that never came to them, its end stays.
func OperationStatus(o Operation, next Action, now metav1.Time) v1alpha1.VMOperationStatus {
	old, found := o.Object.Status, o.Found
	if o.Unread != nil || found == nil && Closed(o.Object) {
		return old
	}
	s := v1alpha1.VMOperationStatus{ObservedGeneration: o.Object.Generation, Conditions: slices.Clone(old.Conditions),
		Phase: v1alpha1.MigrationPending, StartTime: old.StartTime}
	if found == nil {
		s.StartTime = nil
		if next.Refused {
			s.Phase, s.Reason, s.Class = v1alpha1.MigrationFailed, next.Message, class(next.Waits)
			s.CompletionTime = &now
			setCondition(&s.Conditions, s.ObservedGeneration, CondProgressing, metav1.ConditionFalse, next.Waits, next.Message)
			return s
		}
		setCondition(&s.Conditions, s.ObservedGeneration, CondProgressing, metav1.ConditionTrue,
			ReasonOperation, next.Message)
		return s
	}
	s.Phase, s.Step, s.ID = migrationPhases[found.GetPhase()], phases.Records[found.GetPhase()], found.GetId()
	s.Source, s.Destination, s.Digest = found.GetSource(), found.GetDestination(), found.GetDigest()
	s.Reason, s.Class, s.Attempt = found.GetReason(), found.GetClass(), int32(found.GetAttempt())
	s.Attempts, s.StartTime = found.GetAttempts(), unix(found.GetOpenedUnixNano())
	s.CompletionTime = unix(found.GetClosedUnixNano())
	if o.Pod != nil {
		s.PodName = o.Pod.Name
		if s.Phase == v1alpha1.MigrationPending {
			s.Phase = v1alpha1.MigrationScheduling
			if o.Pod.Spec.NodeName != "" {
				s.Phase = v1alpha1.MigrationScheduled
			}
		}
	}
	status, reason := metav1.ConditionTrue, Reason(s.Step)
	if transition.Settled(found.GetPhase()) {
		status = metav1.ConditionFalse
	}
	setCondition(&s.Conditions, s.ObservedGeneration, CondProgressing, status, reason, found.GetReason())
	o.cleanup(&s)
	return s
}

// cleanup says what is left of an operation that is done all the same.
func (o Operation) cleanup(s *v1alpha1.VMOperationStatus) {
	silent, _ := unreleased(o.Found, o.Now)
	switch {
	case o.Found.GetCleanupPending():
		setCondition(&s.Conditions, s.ObservedGeneration, CondCleanupPending, metav1.ConditionTrue, ReasonDeleteRefused,
			o.Found.GetReason())
	case silent != "":
		setCondition(&s.Conditions, s.ObservedGeneration, CondCleanupPending, metav1.ConditionTrue, ReasonNodeSilent, silent)
	default:
		s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c metav1.Condition) bool {
			return c.Type == CondCleanupPending
		})
	}
}

func class(why Reason) string {
	switch why {
	case ReasonEngineMissing:
		return "not implemented"
	case ReasonEnded:
		return "canceled"
	}
	return "failed precondition"
}

// unix is a time as the API writes it: in seconds. 0: none.
func unix(nano int64) *metav1.Time {
	if nano == 0 {
		return nil
	}
	at := metav1.Unix(nano/nanosOfSecond, 0)
	return &at
}
