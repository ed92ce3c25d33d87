package decide

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Stop is what was observed of a VM whose pod's containers are stopped, uncached.
type Stop struct {
	Node  string // that asks, by its certificate
	Asked *nodev1.Pod
	UID   string // of the record under which the VM runs there

	Pod      *corev1.Pod                 // of that uid; nil: the API server has none
	VM       *v1alpha1.VirtualMachine    // nil: there is none
	Set      *v1alpha1.VirtualMachineSet // that the VM may be a member of; nil: none
	Sandbox  *Sandbox                    // that the record says it is of; nil: there is none
	Record   *nodev1.Record              // nil: there is none
	Shutdown bool                        // the node shuts down
	// ShutdownGrace is what kubelets give pods then: no object tells it.
	ShutdownGrace time.Duration
	Now           time.Time
}

// Stopped is what becomes of the VM.
type Stopped struct {
	Hibernate bool // else it ends with its pod, unless Wait
	Wait      bool // until the open operation is over
	Stays     bool // no reason is known, and one may be told a moment later
	Grace     time.Duration
	// FromSignal: Grace counts from the signal, and is a bound in addition to that of the pod.
	FromSignal bool
	Reason     string
}

// NextStop decides what becomes of a VM whose pod is stopped. A VM that somebody wants to go on hibernates. A container
// that a kubelet restarts alone, as by its liveness probe, is no reason.
func NextStop(o Stop) Stopped {
	ends := func(format string, args ...any) Stopped { return Stopped{Reason: fmt.Sprintf(format, args...)} }
	rec, pod := o.Record, o.Pod
	switch why := o.unwanted(); {
	case why != "":
		return ends("%s", why)
	case rec == nil: // nothing says that the VM sleeps then, or runs elsewhere: it was taken away by force
		waits := Stopped{Wait: true, Reason: "its VMRecord is gone: put it back from a copy, or the VM ends with its pod"}
		if pod != nil && pod.DeletionTimestamp != nil {
			waits.Grace = left(pod, o.Now)
		}
		return waits
	case !o.named():
		return ends("the record does not name this pod as the VM's")
	case rec.GetOperation() != nil:
		op := rec.GetOperation()
		return Stopped{Wait: true, Reason: fmt.Sprintf("operation %s is %s", op.GetId(), phases.Records[op.GetPhase()])}
	case pod == nil:
		return Stopped{Hibernate: true, Reason: "the pod was deleted by force"}
	case pod.DeletionTimestamp != nil:
		return Stopped{Hibernate: true, Reason: "the pod is deleted", Grace: left(pod, o.Now)}
	case isTrue(pod, corev1.DisruptionTarget):
		return Stopped{Hibernate: true, Reason: "the pod is a target of a disruption"}
	case o.Shutdown:
		return Stopped{Hibernate: true, Reason: fmt.Sprintf("node %s shuts down", o.Node), Grace: o.ShutdownGrace,
			FromSignal: true}
	}
	return Stopped{Stays: true, Reason: "the pod stays, and a container of it is stopped"}
}

// The events of a stop whose hibernate has failed, as its node says.
const (
	EventHibernateAborted = "HibernateAborted" // the VM ends with its pod
	EventHibernateUnknown = "HibernateUnknown" // an operation is open: the VM may sleep when it ends
)

// FailedStop is the event of a stop whose hibernate has failed, as its node says; empty: the record says that the node
// has not the VM, which may sleep or run elsewhere.
func FailedStop(o Stop) string {
	rec := o.Record
	switch {
	case !o.named() || !o.told():
		return ""
	case rec.GetOperation() != nil && !undone(rec.GetOperation()):
		return EventHibernateUnknown
	}
	return EventHibernateAborted
}

// named reports whether the record names this pod, at this node, as the VM's.
func (o Stop) named() bool {
	rec := o.Record
	return rec != nil && rec.GetUid() == o.UID && rec.GetOwner().GetNode() == o.Node &&
		(rec.GetPlace() == "" || rec.GetPlace() == o.Asked.GetUid())
}

// told reports whether there is an object that the event is about.
func (o Stop) told() bool {
	if pods.OfSandbox(o.Record) { // a node names the pod: it may be any
		owner := pods.SandboxOf(o.Pod)
		return owner != nil && string(owner.UID) == o.Record.GetUid() && o.Pod.Spec.NodeName == o.Node
	}
	return pods.Has(o.VM, o.Set, o.Record) && o.Record.GetUid() == o.UID
}

// unwanted is why the VM is not to go on; empty: it is.
func (o Stop) unwanted() string {
	if pods.OfSandbox(o.Record) && o.Record.GetUid() == o.UID {
		return o.Sandbox.ended(o.UID, o.Now)
	}
	owner := pods.SandboxOf(o.Pod)
	switch vm := o.VM; {
	case o.Record == nil && owner != nil && string(owner.UID) == o.UID: // which Sandbox it was, the record said
		return ""
	case vm == nil:
		return "its VirtualMachine is gone"
	case o.Record == nil && !pods.Claims(vm, o.UID), o.Record != nil && !pods.Has(vm, o.Set, o.Record):
		return "" // it is not that VM's to say
	case vm.DeletionTimestamp != nil:
		return fmt.Sprintf("VirtualMachine %s is deleted", vm.Name)
	case Mode(vm) == v1alpha1.ModeStopped:
		return fmt.Sprintf("VirtualMachine %s is to be Stopped", vm.Name)
	case vm.Spec.Eviction.Strategy == v1alpha1.EvictionNone:
		return fmt.Sprintf("eviction.strategy of VirtualMachine %s is None", vm.Name)
	}
	return ""
}

// left is what a deleted pod still has to end: at least a second, for 0 would say that it is not known.
func left(pod *corev1.Pod, now time.Time) time.Duration {
	left := pod.DeletionTimestamp.Sub(now)
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		left = min(left, time.Duration(*s)*time.Second)
	}
	return max(left, leastLeft)
}

const leastLeft = time.Second

// ShutsDown reports whether a kubelet says that its node is shutting down.
func ShutsDown(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && c.Message == shuttingDown {
			return true
		}
	}
	return false
}

// shuttingDown is what a kubelet has in its condition Ready then (pkg/kubelet/nodeshutdown).
const shuttingDown = "node is shutting down"
