package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RecordPhase is the phase of an operation in the record.
//
// +kubebuilder:validation:Enum=Pending;Preparing;Transferring;Switching;Committed;Cleaning;Succeeded;Aborting;Reverting;Failed;Aborted;LostAtDest;LostAtSrc
type RecordPhase string

// The phases in the record.
const (
	RecordPending      RecordPhase = "Pending"
	RecordPreparing    RecordPhase = "Preparing"
	RecordTransferring RecordPhase = "Transferring"
	RecordSwitching    RecordPhase = "Switching"
	RecordCommitted    RecordPhase = "Committed"
	RecordCleaning     RecordPhase = "Cleaning"
	RecordSucceeded    RecordPhase = "Succeeded"
	RecordAborting     RecordPhase = "Aborting"
	RecordReverting    RecordPhase = "Reverting"
	RecordFailed       RecordPhase = "Failed"
	RecordAborted      RecordPhase = "Aborted"
	RecordLostAtDest   RecordPhase = "LostAtDest"
	RecordLostAtSrc    RecordPhase = "LostAtSrc"
)

// RecordVM is the VM's name in the record.
type RecordVM struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ID string `json:"id"`
}

// VMRecordSpec says whose record it is. It cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a record is that of one VM"
type VMRecordSpec struct {
	VM RecordVM `json:"vm"`
}

// VMRecordSummary is for people and columns. Nothing is decided by it.
type VMRecordSummary struct {
	// +optional
	UID string `json:"uid,omitempty"`
	// Owner is a node or a digest.
	//
	// +optional
	Owner string `json:"owner,omitempty"`
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Operation is the id of the one that is open.
	//
	// +optional
	Operation string `json:"operation,omitempty"`
	// +optional
	Kind OperationKind `json:"kind,omitempty"`
	// +optional
	Phase RecordPhase `json:"phase,omitempty"`
}

// VMRecord is who has a VM, and what is being done to it: the one truth. The operator alone writes it, by
// compare-and-swap over the whole object. Messages are protobuf's bytes: what a newer build wrote is kept by an
// older one. So a new field belongs into a message, and never into this object. Under and summary are
// sent also where they are empty: an API server whose schema lacks them refuses the write then.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=vmrec,categories=godwit
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.summary.owner`
// +kubebuilder:printcolumn:name="Generation",type=integer,JSONPath=`.summary.generation`
// +kubebuilder:printcolumn:name="Operation",type=string,JSONPath=`.summary.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VMRecord struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VMRecordSpec `json:"spec"`
	// Record is a message Record; none: the VM is removed, and deletions are owed.
	//
	// +optional
	Record []byte `json:"record,omitempty"`
	// Closed are messages Operation, oldest first.
	//
	// +listType=atomic
	// +optional
	Closed [][]byte `json:"closed,omitempty"`
	// Owed are messages Owed.
	//
	// +listType=atomic
	// +optional
	Owed [][]byte `json:"owed,omitempty"`
	// Under is the version of the store's own state that the last change was made under.
	//
	// +optional
	Under int64 `json:"under"`
	// +optional
	Summary VMRecordSummary `json:"summary"`
}

// VMRecordList is a list of them.
//
// +kubebuilder:object:root=true
type VMRecordList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VMRecord `json:"items"`
}
