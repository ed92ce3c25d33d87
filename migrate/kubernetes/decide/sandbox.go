package decide

import (
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// AnnotationSandbox of a VMRecord is the name of the Sandbox whose VM it is.
const AnnotationSandbox = "godwit.dev/sandbox"

// AnnotationOnNodeLoss of a Sandbox is what becomes of its VM when its node is lost: NodeLossPolicy. The Sandbox has
// it, and not the pod: who edits the Sandbox may give up what its VM did since its last snapshot.
const AnnotationOnNodeLoss = "godwit.dev/on-node-loss"

// Sandbox is what an object of agent-sandbox says of its pod.
type Sandbox struct {
	Name, UID string
	Restore   bool      // its VM wakes from its newest snapshot when its node is lost
	Deleted   bool      // it is being deleted
	Suspended bool      // it is to have no pod
	Shutdown  time.Time // from then on it has none; zero: never
	Pod       string    // how its pod is called
}

// ended says why nothing of a Sandbox is wanted any more; empty: it may go on.
func (s *Sandbox) ended(uid string, now time.Time) string {
	switch {
	case s == nil || s.UID != uid:
		return "its Sandbox is gone"
	case s.Deleted:
		return fmt.Sprintf("Sandbox %s is deleted", s.Name)
	case !s.Shutdown.IsZero() && !now.Before(s.Shutdown):
		return fmt.Sprintf("Sandbox %s has expired", s.Name)
	}
	return ""
}

// OptedIn reports whether a pod of a Sandbox asks for a VM that stays when the pod ends, or calls itself one.
func (o Resolve) OptedIn() bool {
	return pods.SandboxOf(o.Pod) != nil &&
		(o.Pod.Annotations[pods.AnnotationOnStop] != "" || pods.IsSandboxRecord(o.Named))
}

// OptedOut refuses a pod without the opt-in whose Sandbox has a VM already: that VM sleeps, or runs at a node that is
// silent, and a second one would begin from nothing. rec is what the records have of the Sandbox's VM.
func (o Resolve) OptedOut(rec *nodev1.Record) error {
	owner := pods.SandboxOf(o.Pod)
	if owner == nil || rec == nil || !pods.OfSandbox(rec) || rec.GetUid() != string(owner.UID) {
		return nil
	}
	return o.refused(errdefs.ErrFailedPrecondition, "Sandbox %s has a VM already, VMRecord %s, and its pod template has "+
		"no annotation %s: %s any more: put it back, or make another Sandbox", owner.Name, rec.GetVm().GetId(),
		pods.AnnotationOnStop, pods.OnStopHibernate)
}

// BootsSandbox reports whether the VM of a Sandbox may boot in a pod at a node: one that the API server gave its name.
func BootsSandbox(rec *nodev1.Record, pod *corev1.Pod, node string) bool {
	owner := pods.SandboxOf(pod)
	return owner != nil && string(owner.UID) == rec.GetUid() && pod.Spec.NodeName == node && !pods.Ended(pod) &&
		pod.DeletionTimestamp == nil && pod.Annotations[pods.AnnotationVM] == pods.SandboxVM(rec.GetUid())
}

// NextSandbox decides whether a pod is the VM of its Sandbox, and what is done before it is told so. The Sandbox says
// which pod is its own. Who makes pods can write all that a pod says.
func NextSandbox(o Resolve) (Resolved, Action, error) {
	fail := func(class error, format string, args ...any) (Resolved, Action, error) {
		return Resolved{}, Action{}, o.refused(class, format, args...)
	}
	owner, s, rec := pods.SandboxOf(o.Pod), o.Sandbox, o.Record
	uid := string(owner.UID)
	want := pods.SandboxRecord(o.Pod.Namespace, uid)
	switch {
	case o.Pod.Spec.NodeName != o.Node:
		return fail(errdefs.ErrPermissionDenied, "it is bound to node %q, and node %s asks", o.Pod.Spec.NodeName, o.Node)
	case o.Pod.Spec.RuntimeClassName == nil:
		return fail(errdefs.ErrPermissionDenied, "its object has no runtimeClassName")
	case o.Pod.DeletionTimestamp != nil:
		return fail(errdefs.ErrFailedPrecondition, "it is being deleted")
	case s.ended(uid, o.Now) != "":
		return fail(errdefs.ErrFailedPrecondition, "%s: delete the pod", s.ended(uid, o.Now))
	case s.Suspended:
		return fail(errdefs.ErrFailedPrecondition, "Sandbox %s is Suspended: set operatingMode Running", s.Name)
	case o.Pod.Name != s.Pod:
		return fail(errdefs.ErrPermissionDenied, "the pod of Sandbox %s is called %s: delete this one", s.Name, s.Pod)
	case o.Pod.Labels[pods.LabelSandbox] != pods.NameHash(s.Name):
		return fail(errdefs.ErrPermissionDenied, "its label %s is %q, and Sandbox %s has %q", pods.LabelSandbox,
			o.Pod.Labels[pods.LabelSandbox], s.Name, pods.NameHash(s.Name))
	// What a node says that the VM is called proves nothing.
	case o.Named != want || o.Pod.Annotations[pods.AnnotationVM] != pods.SandboxVM(uid):
		return fail(errdefs.ErrPermissionDenied, "its VM is %s, and the API server gave the pod no such name: kubectl "+
			"apply -k packaging/kubernetes/agent-sandbox, and have the pod made again", want)
	case rec == nil && o.Had: // a boot would begin from nothing, and its memory may be there
		return fail(errdefs.ErrFailedPrecondition, "VMRecord %s of Sandbox %s is gone, and was taken away by force: put the "+
			"record back from a copy, or delete the Sandbox and make it again for a boot", want, s.Name)
	case rec == nil:
		return Resolved{}, Action{Do: EnsureRecord}, nil
	case rec.GetUid() != uid || !pods.OfSandbox(rec):
		return fail(errdefs.ErrPermissionDenied, "VMRecord %s is not of Sandbox %s with uid %s", want, s.Name, uid)
	case o.Noted != s.Name || !o.Had:
		return Resolved{}, Action{Do: NoteOwner}, nil
	}
	resolved, next, err := o.comes()
	if next.Do == Order || next.Do == OrderRecover {
		if err := o.backsOff(); err != nil {
			return Resolved{}, Action{}, err
		}
	}
	return resolved, next, err
}

// ErrWakeFailed is of a pod whose VM could not be woken, until that is tried again.
var ErrWakeFailed = errors.New("its wake failed")

// backsOff refuses a wake for a while after others of this pod have failed. The VM sleeps on: nothing of it is lost.
func (o Resolve) backsOff() error {
	of := func(op *nodev1.Operation) bool { return pods.WokenFor(op) == string(o.Pod.UID) }
	failures, last, left := failedWakes(o.Closed, of, o.Now)
	if left == 0 {
		return nil
	}
	return o.refused(fmt.Errorf("%w: %w", ErrWakeFailed, errdefs.ErrFailedPrecondition), "%s. It keeps its memory. Wakes "+
		"that failed for this pod: %d. The next try is in %v", last.GetReason(), failures, left.Round(time.Second))
}

// comes is a pod that is its Sandbox's, by where the VM is.
func (o Resolve) comes() (Resolved, Action, error) {
	fail := func(format string, args ...any) (Resolved, Action, error) {
		return Resolved{}, Action{}, o.refused(errdefs.ErrFailedPrecondition, format, args...)
	}
	rec := o.Record
	switch {
	case o.Fenced && InHand(rec) != o.Node:
		return o.lost()
	case durable(rec, false, o.Now) && InHand(rec) != o.Node:
		return o.wakes()
	case rec.GetOperation() != nil:
		return o.arrives(rec.GetOperation())
	case record.IsLost(rec):
		return fail("its state is lost: delete the Sandbox")
	case rec.GetOwner().GetDigest() != "":
		return o.wakes()
	case rec.GetOwner().GetNode() != "" && rec.GetOwner().GetNode() != o.Node:
		return fail("node %s has the VM, and has not said that it has ended there",
			rec.GetOwner().GetNode())
	}
	return o.isVM(), Action{Do: None}, nil
}

// wakes is a pod that its VM, which sleeps, comes into.
func (o Resolve) wakes() (Resolved, Action, error) {
	id := pods.WakeFor(string(o.Pod.UID), o.Record.GetVersion())
	return Resolved{}, Action{Do: Order, Operation: id, Node: o.Node}, nil
}

// lost is a pod whose VM is at a node that runs nothing any more, as somebody vouches. What the VM did there since its
// newest snapshot is given up by the Sandbox's own policy alone.
func (o Resolve) lost() (Resolved, Action, error) {
	rec, node := o.Record, InHand(o.Record)
	fail := func(format string, args ...any) (Resolved, Action, error) {
		return Resolved{}, Action{}, o.refused(errdefs.ErrFailedPrecondition, format, args...)
	}
	switch {
	case rec.GetOwner().GetNode() == "": // it sleeps: nothing is given up
	case !o.Sandbox.Restore:
		return fail("node %s is lost, and has the VM. To wake it from its newest snapshot: kubectl annotate sandbox %s "+
			"%s=%s", node, o.Sandbox.Name, AnnotationOnNodeLoss, v1alpha1.NodeLossRestore)
	case len(transition.Restorable(rec)) == 0:
		return fail("node %s is lost, and the VM has no snapshot: its state is lost with the node. Delete the Sandbox", node)
	}
	id := pods.WakeFor(string(o.Pod.UID), rec.GetVersion())
	return Resolved{}, Action{Do: OrderRecover, Operation: id, Node: o.Node}, nil
}

// arrives is a pod whose VM has an open operation. A pod that had this name before is gone, and its wake with it.
func (o Resolve) arrives(op *nodev1.Operation) (Resolved, Action, error) {
	pod := pods.WokenFor(op)
	switch mine := pod == string(o.Pod.UID); {
	case mine && pods.Arriving(op) && op.GetPlace() == pod:
		return o.isVM(), Action{Do: None}, nil
	case !mine && pod != "" && pods.Arriving(op) && !op.GetCancelled():
		return Resolved{}, Action{Do: OrderAbort, Operation: op.GetId()}, nil
	}
	return Resolved{}, wait(ReasonOperation, fmt.Sprintf("operation %s is %s", op.GetId(), phases.Records[op.GetPhase()])),
		nil
}

func (o Resolve) isVM() Resolved { return Resolved{UID: o.Record.GetUid(), Grace: onStop(o.Pod)} }

// SandboxEnd is what was observed of the record of a VM whose pods a Sandbox makes, uncached.
type SandboxEnd struct {
	Record  *nodev1.Record
	Noted   string   // the name of its Sandbox, by the record; empty: it is not written down yet
	Sandbox *Sandbox // of that name; nil: there is none
	Fenced  bool     // somebody vouches that the node which has the VM (InHand) runs nothing any more
	Made    time.Time
	Now     time.Time
}

// unnoted is how long a record may not say which Sandbox it is of. A Resolve says it within seconds, unless it is
// killed. The next one makes the record again if it must.
const unnoted = time.Hour

// untouched is a record that was made, and nothing else: there is nothing to lose with it.
func untouched(rec *nodev1.Record) bool {
	return rec.GetGeneration() == 0 && rec.GetOwner() == nil && rec.GetOperation() == nil &&
		len(rec.GetSnapshots()) == 0 && !record.IsLost(rec)
}

// NextSandboxEnd decides what becomes of a record whose Sandbox has ended: it ends too, with its snapshots.
func NextSandboxEnd(o SandboxEnd) Action {
	rec := o.Record
	op, owner := rec.GetOperation(), rec.GetOwner()
	switch {
	case !pods.OfSandbox(rec):
		return Action{Do: None}
	case o.Noted == "" && untouched(rec) && !o.Made.IsZero() && o.Now.Sub(o.Made) > unnoted:
		return Action{Do: RemoveRecord}
	case o.Noted == "": // a Resolve is at work on it
		return wait(ReasonStarting, "it does not say yet which Sandbox it is of")
	case o.Sandbox != nil && o.Sandbox.UID == rec.GetUid():
		return Action{Do: None}
	case o.Fenced, durable(rec, false, o.Now): // and with the node whatever of it is open
		return Action{Do: OrderGiveUp, Node: InHand(rec)}
	case op != nil && pods.Arriving(op) && !op.GetCancelled():
		return Action{Do: OrderAbort, Operation: op.GetId()}
	case op != nil:
		return wait(ReasonOperation, "operation "+op.GetId()+" ends first")
	case owner.GetNode() != "":
		return wait(ReasonNodeSilent, fmt.Sprintf("node %s has not said yet that the VM has ended there", owner.GetNode()))
	}
	return Action{Do: RemoveRecord}
}
