package decide

import (
	"fmt"
	"time"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// InHand is the node whose loss keeps a VM from a wake elsewhere, and its record from its end; empty: none does.
func InHand(rec *nodev1.Record) string {
	if op := rec.GetOperation(); op.GetKind() == nodev1.Kind_KIND_HIBERNATE {
		return op.GetSource() // also one that has committed, and is not cleaned up yet
	}
	return transition.InHand(rec)
}

// lost is a VM that a node has in hand which runs nothing any more, as somebody vouches. It goes before whatever of the
// VM is open: that node drives it, and ends it never. What the VM did there since its newest snapshot is given up by
// its own policy alone. One that slept until an open wake gives nothing up.
func (o VM) lost() Action {
	rec, node := o.Record, InHand(o.Record)
	sleeps, op := rec.GetOwner().GetNode() == "", rec.GetOperation()
	switch k := transition.Kept(rec); {
	case !o.Fenced, sleeps && op.GetKind() != nodev1.Kind_KIND_WAKE: // one that hibernated is slept
		return Action{Do: None}
	case sleeps && Mode(o.Object) != v1alpha1.ModeRunning:
		return wait(ReasonOperation, fmt.Sprintf("operation %s was to bring the VM to node %s, which is lost. The VM "+
			"sleeps on", op.GetId(), node))
	case !sleeps && o.Object.Spec.OnNodeLoss != v1alpha1.NodeLossRestore:
		return Action{Do: None}
	case !o.Engine:
		return missing("a restore of the VM of the lost node " + node)
	case k != nil && !o.NoSource: // newer than any snapshot
		return Action{Do: OrderReclaim, Node: node, Waits: ReasonNodeLost, Message: restores(rec), After: lookAgain}
	}
	of := func(op *nodev1.Operation) bool { return op.GetGeneration() == rec.GetGeneration() }
	if _, last, left := failedWakes(o.Closed, of, o.Now); left > 0 {
		waits := wait(ReasonNodeLost, fmt.Sprintf("node %s is lost, and operation %s, to wake the VM elsewhere, has failed: "+
			"%s", node, last.GetId(), last.GetReason()))
		waits.After = left
		return waits
	}
	own, _ := o.own()
	for i := range own { // it has the name of the next one, and no kubelet says that it has ended
		if pod := &own[i]; op != nil && pod.Labels[pods.LabelOperation] == op.GetId() && pod.Spec.NodeName == node &&
			!o.names(pod) {
			return Action{Do: DeletePod, Pod: pod, AtOnce: true}
		}
	}
	return Action{Do: OrderRecover, Node: node}
}

// stranded has a VM that stays with its lost node, by its policy, say so. Nothing is ordered of it.
func (o VM) stranded(next Action) Action {
	if !o.Fenced || o.Record.GetOwner().GetNode() == "" || next.Do != None && next.Do != MakeOperation ||
		next.Waits == ReasonNodeLost || next.Refused {
		return next
	}
	return wait(ReasonNodeLost, strands(o.Record))
}

// restores says what comes of a VM that its lost node has in hand, by its policy.
func restores(rec *nodev1.Record) string {
	node := InHand(rec)
	if k := transition.Kept(rec); k != nil {
		return fmt.Sprintf("node %s is lost: it goes on at node %s, as it was at the switch-over, once that answers. If "+
			"it answers that it has nothing any more, the VM wakes from its newest snapshot. If it is gone for good, and runs "+
			"no VM: taint it, too", node, k.GetNode())
	}
	return fmt.Sprintf("node %s is lost: the VM wakes elsewhere first, from its newest snapshot", node)
}

// strands says that a VM stays with its lost node, by its policy, and what brings it back.
func strands(rec *nodev1.Record) string {
	node := InHand(rec)
	if k := transition.Kept(rec); k != nil {
		return fmt.Sprintf("node %s is lost, and has the VM. Node %s holds it as it was at the switch-over. To have it go "+
			"on there: set spec.onNodeLoss to %s", node, k.GetNode(), v1alpha1.NodeLossRestore)
	}
	return fmt.Sprintf("node %s is lost, and has the VM. To wake it from its newest snapshot: set spec.onNodeLoss to %s",
		node, v1alpha1.NodeLossRestore)
}

// durable reports whether a VM sleeps for good, though its hibernate is open still: its source has to clean up, and
// does not. It gave the VM up before the commit. So a wake closes the hibernate, and makes no second VM. That needs
// no word for the node: a Node that was deleted can have no taint.
func durable(rec *nodev1.Record, fenced bool, now time.Time) bool {
	op := rec.GetOperation()
	silent, _ := unreleased(op, now)
	return op.GetKind() == nodev1.Kind_KIND_HIBERNATE && rec.GetOwner().GetDigest() != "" &&
		(op.GetPhase() == nodev1.Phase_PHASE_COMMITTED || op.GetPhase() == nodev1.Phase_PHASE_CLEANING) &&
		(fenced || silent != "")
}

// slept reports whether a VM is durable.
func (o VM) slept() bool { return durable(o.Record, o.Fenced, o.Now) }

// follows reports whether an order is what the VM's own spec still asks for. One of a person is.
func (o VM) follows(order *v1alpha1.VMOperation) bool {
	if order.Labels[LabelFor] == "" {
		return true
	}
	mode := Mode(o.Object)
	switch order.Spec.Kind {
	case v1alpha1.KindHibernate:
		return mode == v1alpha1.ModeHibernated
	case v1alpha1.KindMigrate:
		return mode == v1alpha1.ModeRunning && order.Spec.NodeName == o.Object.Spec.NodeName
	case v1alpha1.KindWake:
		return mode == v1alpha1.ModeRunning && order.Spec.NodeName == o.wish()
	}
	return true
}

// waitsFor is a VM that has an open order, which no node has taken as far as is known.
func (o VM) waitsFor(order *v1alpha1.VMOperation) Action {
	if !o.follows(order) && !order.Spec.Abort && order.Status.ID == "" {
		return Action{Do: AbortOperation, Operation: order.Name}
	}
	return wait(ReasonOperation, "VMOperation "+order.Name+" waits for its turn")
}
