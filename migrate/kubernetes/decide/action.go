// Package decide says what the operator does next, from what was observed alone. Nothing here asks or writes anything.
//
// Each function answers one action. The caller makes it, and what that changes is observed anew. What a cache tells
// can only come to None: whatever else is decided by is read uncached first.
package decide

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Do is what is done next.
type Do string

// What can be done.
const (
	None            Do = "None"
	AddFinalizer    Do = "AddFinalizer"
	DropFinalizer   Do = "DropFinalizer"
	EnsureRecord    Do = "EnsureRecord"
	RemoveRecord    Do = "RemoveRecord"
	MakePod         Do = "MakePod"
	DeletePod       Do = "DeletePod"
	SetGate         Do = "SetGate"
	SetMode         Do = "SetMode" // of the VM: Hibernated
	StopVM          Do = "StopVM"  // its mode becomes Stopped
	MakeOperation   Do = "MakeOperation"
	AbortOperation  Do = "AbortOperation"
	DeleteOperation Do = "DeleteOperation"
	Order           Do = "Order" // to the engine, by a VMOperation
	OrderAbort      Do = "OrderAbort"
	OrderRecover    Do = "OrderRecover"
	OrderReclaim    Do = "OrderReclaim" // by the source of a move whose destination is lost
	OrderGiveUp     Do = "OrderGiveUp"  // of a VM together with its node, which is lost
	NoteRun         Do = "NoteRun"
	NoteOwner       Do = "NoteOwner" // the Sandbox whose VM a record is of
	MakeVM          Do = "MakeVM"
	UpdateVM        Do = "UpdateVM"
	DeleteVM        Do = "DeleteVM"
	TakeSnapshot    Do = "TakeSnapshot" // it is the VM's from then on: no other one begins from it
	BeginVM         Do = "BeginVM"      // the snapshot owns the VM
)

// Action is what is done next, and why. What a Do needs of it is set.
type Action struct {
	Do  Do
	Pod *corev1.Pod // MakePod: the new one. DeletePod, SetGate: the one that was seen
	On  bool        // SetGate
	// AtOnce is a DeletePod whose kubelet is not waited for: somebody vouches that its node runs nothing any more.
	AtOnce bool
	// Restored is how the VM came into the pod of a SetGate; empty: it booted there, or is not there.
	Restored Reason

	Kind      v1alpha1.OperationKind // MakeOperation, Order, OrderAbort
	Node      string                 // MakeOperation, Order: the destination; empty: the scheduler's choice
	Operation string                 // AbortOperation, DeleteOperation: its name. OrderAbort: its id
	VM        *v1alpha1.VirtualMachine
	Images    map[string]string // NoteRun: by container
	Addresses []string          // NoteRun
	Template  string            // NoteRun: that the VM booted from; empty: not known
	// AddressesOf is the pod in which they were seen.
	AddressesOf types.UID
	Content     *v1alpha1.VMSnapshotContent
	Digest      string                    // TrimSnapshot
	Record      *nodev1.Record            // TrimSnapshot: that lists it
	UIDs        []string                  // EnsureRecord: the record has the first that no other one has or had
	From        *nodev1.RestoreFrom       // EnsureRecord: nil: the VM boots
	Held        *nodev1.Owed              // TakeSnapshot, BeginVM, ReleaseSnapshot: as it was seen
	Keep        bool                      // ReleaseSnapshot: it stays in the registry
	Class       *v1alpha1.VMSnapshotClass // EnsureRecord: where the VM's snapshots go; nil: as its nodes are configured

	// Waits is why nothing is done although something is wanted. Refused: nothing will be until somebody changes
	// something.
	Waits   Reason
	Refused bool
	Untold  Reason // why the workload of a snapshot that is Ready does not hear of it now
	Message string
	After   time.Duration // look again, though nothing may have told of a change; 0: need not
}

// Reason of a condition.
type Reason string

// The reasons.
const (
	ReasonRunning            Reason = "Running"
	ReasonHibernated         Reason = "Hibernated"
	ReasonStopped            Reason = "Stopped"
	ReasonStarting           Reason = "Starting"
	ReasonOperation          Reason = "OperationInProgress"
	ReasonPodNotReady        Reason = "PodNotReady"
	ReasonNodeUnreachable    Reason = "NodeUnreachable"
	ReasonNodeLost           Reason = "NodeLost" // somebody vouches that it runs nothing any more
	ReasonRecordsUnavailable Reason = "RecordsUnavailable"
	ReasonRecordMissing      Reason = "RecordMissing"
	ReasonRecordOfAnother    Reason = "RecordOfAnother"
	ReasonStateKept          Reason = "StateKept"
	ReasonNotHibernated      Reason = "NotHibernated"
	ReasonCommitted          Reason = "Committed"
	ReasonEngineMissing      Reason = "EngineMissing"
	ReasonUnschedulable      Reason = "Unschedulable"
	ReasonInvalid            Reason = "Invalid"
	ReasonRefused            Reason = "Refused" // an order, by the engine
	ReasonLost               Reason = "Lost"
	ReasonEnded              Reason = "Ended"
	ReasonDeleteRefused      Reason = "DeleteRefused"
	ReasonNodeSilent         Reason = "NodeSilent"
	ReasonBackOff            Reason = "BackOff"
	ReasonPodsAlive          Reason = "PodsAlive"
	ReasonStopsAtFailure     Reason = "StopsAtFailure"
	ReasonWoken              Reason = "Woken"
	ReasonMoved              Reason = "Moved"
	ReasonRestored           Reason = "Restored" // by an operation that is known no more
	ReasonTemplateChanged    Reason = "TemplateChanged"
	ReasonTemplateCurrent    Reason = "TemplateCurrent"
)

func wait(why Reason, message string) Action { return Action{Do: None, Waits: why, Message: message} }

func refuse(why Reason, message string) Action {
	return Action{Do: None, Waits: why, Message: message, Refused: true}
}

// backOff is how long after so many failures something is tried again.
func backOff(failures int) time.Duration {
	const first, most = 10 * time.Second, 5 * time.Minute
	return min(most, first<<min(failures, 6))
}
