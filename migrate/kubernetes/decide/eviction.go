package decide

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Eviction is what was observed of a pod that somebody wants to evict.
type Eviction struct {
	Pod    *corev1.Pod // nil: the API server has said that there is none
	VM     *v1alpha1.VirtualMachine
	Set    *v1alpha1.VirtualMachineSet // that the VM may be a member of; nil: none
	Record *nodev1.Record
	Unread error // as in VM
	Orders []v1alpha1.VMOperation
	Grace  *int64 // seconds that the eviction asks for; nil: the pod's own

	Engine   bool
	Fenced   bool  // as in VM
	OnStop   bool  // the nodes' shims hibernate at a stop
	MinGrace int64 // seconds that a hibernate at a stop needs
	Least    int64 // seconds that the class of its snapshots asks for
}

// AnnotationEvicted of a move that an eviction has ordered is the generation of the record that has the VM in the pod.
const AnnotationEvicted = "godwit.dev/evicted-generation"

// Answer to an eviction. A client tries again what is not allowed.
type Answer struct {
	Allow   bool
	Order   bool // a move has to be ordered first
	Message string
}

// NextEviction decides what is answered to an eviction.
func NextEviction(o Eviction) Answer {
	pod, vm := o.Pod, o.VM
	switch {
	case o.Unread != nil:
		return Answer{Message: "whether a VM runs in it cannot be read: " + o.Unread.Error()}
	case pod == nil, pods.Ended(pod), pod.DeletionTimestamp != nil, pod.Labels[pods.LabelVM] == "", vm == nil:
		return Answer{Allow: true}
	case o.Record == nil && pod.Status.Phase == corev1.PodRunning:
		return Answer{Message: "pod and VM are there, and the record is not: what runs in the pod, nobody can tell"}
	case !pods.Names(o.Record, pod): // no VM runs in it: it waits for a node, or an operation brings one to it
		if o.switching() {
			return o.busy()
		}
		return Answer{Allow: true}
	case !pods.Has(vm, o.Set, o.Record): // what the VM's spec says, and whether it moves, is not of what runs
		return Answer{Message: fmt.Sprintf("VMRecord %s, with uid %s, names the pod, and is not of its VirtualMachine "+
			"with uid %s. If the pod is deleted, the VM sleeps", pods.RecordID(vm), o.Record.GetUid(), vm.UID)}
	}
	switch vm.Spec.Eviction.Strategy {
	case v1alpha1.EvictionNone:
		return Answer{Allow: true}
	case v1alpha1.EvictionCold, v1alpha1.EvictionHibernate:
		return o.stops()
	}
	return o.movesAway()
}

// switching: the destination of a move may own the VM within this moment.
func (o Eviction) switching() bool {
	op := o.Record.GetOperation()
	return op.GetPhase() == nodev1.Phase_PHASE_SWITCHING && o.Pod.Labels[pods.LabelOperation] == op.GetId()
}

// busy refuses while an operation is open, by the name of its order where there is one.
func (o Eviction) busy() Answer {
	op := o.Record.GetOperation()
	name := "operation " + op.GetId()
	for i := range o.Orders {
		if string(o.Orders[i].UID) == op.GetId() {
			name = ofOrder(&o.Orders[i])
		}
	}
	return Answer{Message: fmt.Sprintf("%s is %s", name, phases.Records[op.GetPhase()])}
}

func ofOrder(op *v1alpha1.VMOperation) string { return "VMOperation " + op.Name }

// stops is a VM that its pod's end freezes. The API server takes the budget before that.
func (o Eviction) stops() Answer {
	grace, need := o.MinGrace, o.MinGrace
	if s := o.Pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace, need = *s, max(need, min(o.Least, *s)) // a pod that was made before the class asked goes as it was made
	}
	if o.Grace != nil {
		grace = *o.Grace
	}
	switch op := o.Record.GetOperation(); {
	case op != nil:
		return o.busy()
	case !o.OnStop:
		return Answer{Message: "it would end the VM: nodes do not hibernate a VM at a stop yet. Hibernate it, or set " +
			"eviction.strategy None to give it up"}
	case o.Pod.Annotations[pods.AnnotationOnStop] != pods.OnStopHibernate:
		return Answer{Message: "it would end the VM: its pod was made to end with what stops it. Hibernate the VM and wake " +
			"it, or set eviction.strategy None to give it up"}
	case grace < need:
		return Answer{Message: fmt.Sprintf("its grace period is %d s, and a hibernate needs %d s", grace, need)}
	}
	return Answer{Allow: true}
}

// movesAway is a VM that runs on elsewhere before its pod goes: no budget is taken.
func (o Eviction) movesAway() Answer {
	if o.Record.GetOperation() != nil {
		return o.busy()
	}
	for i := range o.Orders {
		if op := &o.Orders[i]; !Closed(op) && op.DeletionTimestamp == nil {
			return Answer{Message: fmt.Sprintf("%s is %s", ofOrder(op), orPending(op.Status.Phase))}
		}
	}
	if o.Fenced { // no move would begin
		if o.VM.Spec.OnNodeLoss == v1alpha1.NodeLossRestore {
			return Answer{Message: restores(o.Record)}
		}
		return Answer{Message: strands(o.Record)}
	}
	if o.stays() {
		return o.stops()
	}
	if !o.Engine {
		return Answer{Message: "the VM moves live, and this operator has no engine for operations yet. Set " +
			"eviction.strategy None to give it up"}
	}
	return Answer{Order: true}
}

// EvictionOrder is how the names of the moves begin that evictions order of a VM, as long as it stays where it is.
func EvictionOrder(vm *v1alpha1.VirtualMachine, rec *nodev1.Record) string {
	return fmt.Sprintf("%s-evict-g%d", vm.Name, rec.GetGeneration())
}

// NextEvictionOrder is the name of the next one: its number is above those of all that are there. Of many that have
// failed, the first ones are forgotten by now. A person may have given such names, too: none that is there is taken.
func NextEvictionOrder(vm *v1alpha1.VirtualMachine, rec *nodev1.Record, orders []v1alpha1.VMOperation) string {
	next := 0
	for i := range orders {
		if n, ok := evictionNumber(vm, rec, &orders[i]); ok {
			next = max(next, n+1)
		}
	}
	for {
		name := fmt.Sprint(EvictionOrder(vm, rec), "-", next)
		if !slices.ContainsFunc(orders, func(op v1alpha1.VMOperation) bool { return op.Name == name }) {
			return name
		}
		next++
	}
}

// evictionNumber is that of a move which an eviction has ordered of the VM where it is; false: the order is no such.
func evictionNumber(vm *v1alpha1.VirtualMachine, rec *nodev1.Record, op *v1alpha1.VMOperation) (int, bool) {
	text, ours := strings.CutPrefix(op.Name, EvictionOrder(vm, rec)+"-")
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), ours && err == nil
}

// evictionStands is how long a move that an eviction has ordered may take to begin. Who evicts asks again, much sooner.
const evictionStands = 10 * time.Minute

// overtaken is why a move that has not begun is not needed by the eviction that ordered it; empty: it is.
func (o Operation) overtaken() string {
	op := o.Object
	generation, ordered := op.Annotations[AnnotationEvicted]
	switch {
	case !ordered:
		return ""
	case generation != strconv.FormatUint(o.Record.GetGeneration(), 10):
		return "the VM is in the pod no more that was evicted"
	case op.Annotations[AnnotationGeneration] != strconv.FormatInt(o.VM.Generation, 10):
		return "its VirtualMachine was changed since. An eviction that goes on orders another move"
	case o.Now.Sub(op.CreationTimestamp.Time) > evictionStands:
		return fmt.Sprintf("it has not begun within %v. An eviction that goes on orders another move", evictionStands)
	}
	return ""
}

// stays: the VM does not move live, or a move that an eviction ordered has shown that it cannot. It may move asleep.
// One that keeps its address may not: the network that refused it would refuse the wake.
func (o Eviction) stays() bool {
	switch {
	case o.VM.Spec.Network == v1alpha1.NetworkKeep, o.VM.Spec.Migration.Lane == v1alpha1.LaneLive:
		return false
	case o.VM.Spec.Migration.Lane == v1alpha1.LaneCold:
		return true
	}
	for i := range o.Orders {
		op := &o.Orders[i]
		_, ours := evictionNumber(o.VM, o.Record, op)
		ours = ours || op.Annotations[AnnotationEvicted] == strconv.FormatUint(o.Record.GetGeneration(), 10)
		if ours && op.Status.Phase == v1alpha1.MigrationFailed && op.Status.Class == class("") && judged(op) {
			return true
		}
	}
	return false
}

// judged: the records know the order, or the engine has refused it. Others come to nothing for want of a record, of a
// node or of a VM that is awake. That says nothing of whether the VM moves.
func judged(op *v1alpha1.VMOperation) bool {
	c := meta.FindStatusCondition(op.Status.Conditions, CondProgressing)
	return op.Status.ID != "" || c != nil && c.Reason == string(ReasonRefused)
}

func orPending(phase v1alpha1.MigrationPhase) v1alpha1.MigrationPhase {
	if phase == "" {
		return v1alpha1.MigrationPending
	}
	return phase
}
