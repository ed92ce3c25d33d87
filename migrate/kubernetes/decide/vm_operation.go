package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// under is a VM with an operation at work on it.
func (o VM) under(op *nodev1.Operation) Action {
	own, _ := o.own()
	committed := transition.Committed(op.GetPhase())
	if done := ended(own, op.GetGeneration()+1); done != nil && committed {
		return o.deletePod(done) // of the source, which was released
	}
	for i := range own { // of attempts that are over: no destination has the VM
		pod := &own[i]
		over := pods.Attempt(pod) < op.GetAttempt() || undone(op)
		if pod.Labels[pods.LabelOperation] == op.GetId() && over && pod.DeletionTimestamp == nil && !o.names(pod) {
			return Action{Do: DeletePod, Pod: pod}
		}
	}
	if abort := o.withdrawn(op); abort.Do != None {
		return abort
	}
	if !pods.Arriving(op) {
		waits := wait(ReasonOperation, op.GetReason())
		_, waits.After = unreleased(op, o.Now)
		return waits
	}
	for i := range own {
		if pod := &own[i]; pod.Labels[pods.LabelOperation] == op.GetId() && pods.Attempt(pod) == op.GetAttempt() {
			return wait(ReasonOperation, Unscheduled(pod)) // also without a node: the scheduler has not chosen yet
		}
	}
	if op.GetByPlace() { // the engine asks for the pod
		return wait(ReasonOperation, op.GetReason())
	}
	return o.makePod()
}

// Arrival is the pod that an operation without a destination waits for.
func Arrival(o VM) Action {
	switch {
	case o.Unread != nil:
		return wait(ReasonRecordsUnavailable, o.Unread.Error())
	case o.Object.DeletionTimestamp != nil:
		return wait(ReasonOperation, "the VM is deleted")
	case !o.mine():
		return refuse(ReasonRecordOfAnother, "the record of this name is of another VM")
	case !record.Unplaced(o.Record.GetOperation()):
		return wait(ReasonOperation, "no operation waits for a place")
	}
	return o.makePod()
}

// leftover ends a pod whose operation is closed, and that the VM never came into: of a wake that has failed at its
// node, or one whose making came late. The pods were read before the record, which knows each operation that has a pod.
func (o VM) leftover() Action {
	own, _ := o.own()
	for i := range own {
		pod := &own[i]
		id := pod.Labels[pods.LabelOperation]
		if o.Record != nil && id != "" && id != o.Record.GetOperation().GetId() && !o.names(pod) &&
			pods.Generation(pod) > o.Record.GetGeneration() && pod.DeletionTimestamp == nil {
			return Action{Do: DeletePod, Pod: pod}
		}
	}
	return Action{Do: None}
}

// note writes down what the containers of a VM run, by digest, and its addresses: its next pod has the same.
func (o VM) note() Action {
	addresses, seen := o.addresses()
	template := o.template()
	if o.Record.GetOperation() != nil || len(o.Running) == 0 || maps.Equal(o.Running, o.Images) &&
		template == o.Template && slices.Equal(addresses, o.Addresses) && (seen == o.AddressesOf || len(addresses) == 0) {
		return Action{Do: None}
	}
	return Action{Do: NoteRun, Images: o.Running, Addresses: addresses, AddressesOf: seen, Template: template}
}

// addresses of a VM, and the pod that they were seen in. A node says what addresses its pods have, and may lie: so what
// was seen of a pod stays. A VM that keeps its addresses brings them into each pod that it comes into.
func (o VM) addresses() (all []string, seen types.UID) {
	own, _ := o.own()
	for i := range own {
		pod := &own[i]
		came := pod.Labels[pods.LabelOperation] != ""
		kept := o.Object.Spec.Network == v1alpha1.NetworkKeep && came && len(o.Addresses) > 0
		if !o.names(pod) || kept || pod.UID == o.AddressesOf {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			all = append(all, ip.IP)
		}
		seen = pod.UID
	}
	if len(all) == 0 {
		return o.Addresses, o.AddressesOf
	}
	return all, seen
}

// undone: the attempt is over, and its destination never runs. After a switch-over has begun that is not said.
func undone(op *nodev1.Operation) bool {
	switch op.GetPhase() {
	case nodev1.Phase_PHASE_ABORTING, nodev1.Phase_PHASE_ABORTED, nodev1.Phase_PHASE_FAILED:
		return true
	}
	return false
}

func (o VM) names(pod *corev1.Pod) bool { return pods.Names(o.Record, pod) }

// withdrawn calls off what followed the VM's own wish, when the wish is another one by now: a move, or a wake that
// waits for a node.
func (o VM) withdrawn(op *nodev1.Operation) Action {
	order := o.orderOf(op.GetId())
	waits := op.GetKind() == nodev1.Kind_KIND_WAKE && record.Unplaced(op)
	if op.GetKind() != nodev1.Kind_KIND_MIGRATE && !waits || !pods.Arriving(op) || order == nil || order.Spec.Abort ||
		order.Labels[LabelFor] == "" {
		return Action{Do: None}
	}
	if !o.follows(order) {
		return Action{Do: AbortOperation, Operation: order.Name}
	}
	return Action{Do: None}
}

func (o VM) orderOf(id string) *v1alpha1.VMOperation {
	for i := range o.Orders {
		if string(o.Orders[i].UID) == id {
			return &o.Orders[i]
		}
	}
	return nil
}

// openOrder is one that the engine has not been told of, or has not ended; not that of the open operation.
func (o VM) openOrder() *v1alpha1.VMOperation {
	for i := range o.Orders {
		mine := o.Orders[i].UID != "" && string(o.Orders[i].UID) == o.Record.GetOperation().GetId()
		if !mine && !Closed(&o.Orders[i]) && o.Orders[i].DeletionTimestamp == nil {
			return &o.Orders[i]
		}
	}
	return nil
}

// Closed reports whether nothing more comes of an order.
func Closed(op *v1alpha1.VMOperation) bool {
	return op.Status.Phase == v1alpha1.MigrationSucceeded || op.Status.Phase == v1alpha1.MigrationFailed
}

// order makes a VMOperation for what the VM itself asks for. After failures it waits.
func (o VM) order(kind v1alpha1.OperationKind, node string) Action {
	if !o.Engine {
		return missing(string(kind))
	}
	generation, failures := strconv.FormatInt(o.Object.Generation, 10), 0
	var last *v1alpha1.VMOperation
	for i := range o.Orders {
		op := &o.Orders[i]
		if op.Labels[LabelFor] == string(o.Object.UID) && op.Annotations[AnnotationGeneration] == generation &&
			op.Spec.Kind == kind && op.Status.Phase == v1alpha1.MigrationFailed {
			failures++
			if last == nil || last.Status.CompletionTime.Before(op.Status.CompletionTime) {
				last = op
			}
		}
	}
	if last != nil && last.Status.CompletionTime != nil {
		if left := backOff(failures) - o.Now.Sub(last.Status.CompletionTime.Time); left > 0 {
			return Action{Do: None, Waits: ReasonBackOff, After: left,
				Message: fmt.Sprintf("VMOperation %s has failed: %s", last.Name, last.Status.Reason)}
		}
	}
	return Action{Do: MakeOperation, Kind: kind, Node: node}
}

// wanted is where a new pod has to go. An operation says it: each node but its destination refuses the VM, and a wish
// for another one is another order.
func (o VM) wanted() string {
	if op := o.Record.GetOperation(); op != nil {
		return cmp.Or(op.GetDestination(), op.GetWish())
	}
	return o.wish()
}

// wish is where the VM is wanted: where the main VM of the set is, or by its own nodeName.
func (o VM) wish() string {
	if o.MainNode != "" {
		return o.MainNode
	}
	return o.Object.Spec.NodeName
}

// makePod is the only place that wants a pod.
func (o VM) makePod() Action {
	images := o.Images
	if len(images) == 0 {
		images = o.Running
	}
	if len(images) == 0 && o.Record.GetRestoreFrom().GetBegun() { // a wrong one is refused by its id, and can be mended
		images = pods.TemplateImages(o.Object)
	}
	pod, err := pods.Make(pods.Input{VM: o.Object, Set: o.Set, Record: o.Record, Images: images, Node: o.wanted(),
		Holders: o.Holders, CPU: o.CPU, Movable: o.Engine, OnStop: o.OnStop, Grace: o.Grace,
		Addresses: o.Addresses, Ask: o.Ask})
	if err != nil {
		return refuse(ReasonInvalid, err.Error())
	}
	if slices.ContainsFunc(o.Pods, func(p corev1.Pod) bool { return p.Name == pod.Name }) {
		return wait(ReasonPodsAlive, fmt.Sprintf("pod %s, which has the name of the next one, ends", pod.Name))
	}
	return Action{Do: MakePod, Pod: pod}
}
