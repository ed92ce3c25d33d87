package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VMPhase says in one word where a VM is. Conditions say why.
//
// +kubebuilder:validation:Enum=Pending;Scheduling;Starting;Running;Hibernating;Hibernated;Waking;Migrating;Stopping;Stopped;Succeeded;Failed;Lost
type VMPhase string

// The phases of a VM.
const (
	VMPending     VMPhase = "Pending"
	VMScheduling  VMPhase = "Scheduling"
	VMStarting    VMPhase = "Starting"
	VMRunning     VMPhase = "Running"
	VMHibernating VMPhase = "Hibernating"
	VMHibernated  VMPhase = "Hibernated"
	VMWaking      VMPhase = "Waking"
	VMMigrating   VMPhase = "Migrating"
	VMStopping    VMPhase = "Stopping"
	VMStopped     VMPhase = "Stopped"
	VMSucceeded   VMPhase = "Succeeded"
	VMFailed      VMPhase = "Failed"
	VMLost        VMPhase = "Lost"
)

// VMOwner is who has the VM: a node, or the snapshot of that digest.
type VMOwner struct {
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	Digest string `json:"digest,omitempty"`
}

// OperationRef is the operation that is open.
type OperationRef struct {
	ID string `json:"id"`
	// +optional
	Kind OperationKind `json:"kind,omitempty"`
	// Name of the VMOperation; empty: it was not ordered by one.
	//
	// +optional
	Name string `json:"name,omitempty"`
}

// SnapshotStatus is one snapshot of a VM.
type SnapshotStatus struct {
	Digest string `json:"digest"`
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// VirtualMachineStatus is a copy of what the record says. Two things are decided by it: which record the VM has, and
// whether it had a state where the record is gone.
type VirtualMachineStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Generation is the record's, not the object's.
	//
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// +optional
	Phase VMPhase `json:"phase,omitempty"`
	// +optional
	Owner VMOwner `json:"owner,omitzero"`
	// +optional
	RecordUID string `json:"recordUID,omitempty"`
	// +optional
	Pod *PodRef `json:"pod,omitempty"`
	// +optional
	Operation *OperationRef `json:"operation,omitempty"`
	// +optional
	LastSnapshot *SnapshotStatus `json:"lastSnapshot,omitempty"`
	// +listType=set
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VirtualMachine is a VM that sleeps, wakes and moves as one object.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=gvm,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.operatingMode`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.owner.node`
// +kubebuilder:printcolumn:name="Operation",type=string,JSONPath=`.status.operation.kind`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VirtualMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VirtualMachineSpec `json:"spec"`
	// +optional
	Status VirtualMachineStatus `json:"status,omitzero"`
}

// VirtualMachineList is a list of them.
//
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VirtualMachine `json:"items"`
}
