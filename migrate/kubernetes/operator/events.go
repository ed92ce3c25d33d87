package operator

import (
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// Events of snapshots and of VMs that go on with their memory. An ambiguous snapshot has its reason as its event.
const (
	eventCreated          = "SnapshotCreated"
	eventCreateFailed     = "SnapshotCreateFailed" // no node has begun to take it
	eventFailed           = "SnapshotFailed"
	eventOrderFailed      = "WorkOrderCreateFailed"
	eventTellFailed       = "WorkloadTellFailed"
	eventRestoreRequested = "RestoreRequested" // a pod waits for a VM with its memory
	eventRestored         = "RestoreSucceeded"
	eventRestoreFailed    = "RestoreFailed"
)

// EventOf is the event of what was done for a VM.
func EventOf(next decide.Action) string {
	switch {
	case next.Do == decide.MakePod && next.Pod.Labels[pods.LabelOperation] != "":
		return eventRestoreRequested
	case next.Do == decide.SetGate && next.Restored != "":
		return eventRestored
	case next.Do == decide.StopVM:
		return string(next.Waits)
	}
	return string(next.Do)
}

// eventOfFailure is the event of an order that has failed.
func eventOfFailure(kind v1alpha1.OperationKind) string {
	if kind == v1alpha1.KindWake {
		return eventRestoreFailed
	}
	return string(kind) + "Failed"
}

// eventOfRefusal is the event of a snapshot that will never be there.
func eventOfRefusal(s *v1alpha1.VMSnapshot) string {
	if s.Status.BoundSnapshotContentName == "" {
		return eventCreateFailed
	}
	return eventFailed
}
