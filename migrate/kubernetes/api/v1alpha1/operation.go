package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OperationKind is what an operation does.
//
// +kubebuilder:validation:Enum=Hibernate;Wake;Migrate;Checkpoint
type OperationKind string

// The kinds of operations.
const (
	KindHibernate  OperationKind = "Hibernate"
	KindWake       OperationKind = "Wake"
	KindMigrate    OperationKind = "Migrate"
	KindCheckpoint OperationKind = "Checkpoint"
)

// Priority of an operation among those that wait, by KubeVirt's names.
//
// +kubebuilder:validation:Enum=system-critical;user-triggered;system-maintenance
type Priority string

// The priorities.
const (
	PriorityCritical    Priority = "system-critical"
	PriorityUser        Priority = "user-triggered"
	PriorityMaintenance Priority = "system-maintenance"
)

// MigrationPhase says where an operation is, by KubeVirt's names.
//
// +kubebuilder:validation:Enum=Pending;Scheduling;Scheduled;PreparingTarget;TargetReady;Running;Succeeded;Failed
type MigrationPhase string

// The phases of an operation.
const (
	MigrationPending         MigrationPhase = "Pending"
	MigrationScheduling      MigrationPhase = "Scheduling"
	MigrationScheduled       MigrationPhase = "Scheduled"
	MigrationPreparingTarget MigrationPhase = "PreparingTarget"
	MigrationTargetReady     MigrationPhase = "TargetReady"
	MigrationRunning         MigrationPhase = "Running"
	MigrationSucceeded       MigrationPhase = "Succeeded"
	MigrationFailed          MigrationPhase = "Failed"
)

// VMOperationSpec is an order. It cannot be changed, but for abort.
//
// +kubebuilder:validation:XValidation:rule="self.vmRef == oldSelf.vmRef && self.kind == oldSelf.kind && self.priority == oldSelf.priority && self.lane == oldSelf.lane",message="an order cannot be changed: abort it and make another VMOperation"
// +kubebuilder:validation:XValidation:rule="has(self.nodeName) == has(oldSelf.nodeName) && (!has(self.nodeName) || self.nodeName == oldSelf.nodeName)",message="an order cannot be changed: abort it and make another VMOperation"
// +kubebuilder:validation:XValidation:rule="has(self.maxDowntimeMs) == has(oldSelf.maxDowntimeMs) && (!has(self.maxDowntimeMs) || self.maxDowntimeMs == oldSelf.maxDowntimeMs)",message="an order cannot be changed: abort it and make another VMOperation"
// +kubebuilder:validation:XValidation:rule="has(self.timeoutSeconds) == has(oldSelf.timeoutSeconds) && (!has(self.timeoutSeconds) || self.timeoutSeconds == oldSelf.timeoutSeconds)",message="an order cannot be changed: abort it and make another VMOperation"
// +kubebuilder:validation:XValidation:rule="has(self.bandwidthPerSecond) == has(oldSelf.bandwidthPerSecond) && (!has(self.bandwidthPerSecond) || self.bandwidthPerSecond == oldSelf.bandwidthPerSecond)",message="an order cannot be changed: abort it and make another VMOperation"
// +kubebuilder:validation:XValidation:rule="has(self.abortOn) == has(oldSelf.abortOn) && (!has(self.abortOn) || self.abortOn == oldSelf.abortOn)",message="an order cannot be changed: abort it and make another VMOperation"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.abort) || !oldSelf.abort || (has(self.abort) && self.abort)",message="abort cannot be taken back: make another VMOperation"
// +kubebuilder:validation:XValidation:rule="!has(self.nodeName) || self.kind in ['Migrate', 'Wake']",message="nodeName is for Migrate and Wake: leave it out"
type VMOperationSpec struct {
	VMRef VMRef         `json:"vmRef"`
	Kind  OperationKind `json:"kind"`
	// NodeName is the destination; empty: the scheduler's choice.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName        string `json:"nodeName,omitempty"`
	MigrationPolicy `json:",inline"`
	// +kubebuilder:default=user-triggered
	// +optional
	Priority Priority `json:"priority,omitempty"`
	// +optional
	Abort bool `json:"abort,omitempty"`
}

// Progress of a transfer.
type Progress struct {
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
	// +optional
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// +optional
	Pass int32 `json:"pass,omitempty"`
}

// DowntimeSplit is where the time went in which the VM stood.
type DowntimeSplit struct {
	// +optional
	TotalMs int64 `json:"totalMs,omitempty"`
	// +optional
	TransferMs int64 `json:"transferMs,omitempty"`
	// +optional
	CommitMs int64 `json:"commitMs,omitempty"`
	// +optional
	ResumeMs int64 `json:"resumeMs,omitempty"`
}

// VMOperationStatus is a copy of what the record says of the operation.
type VMOperationStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase MigrationPhase `json:"phase,omitempty"`
	// Step is the phase in the record, which is finer.
	//
	// +optional
	Step RecordPhase `json:"step,omitempty"`
	// +optional
	ID string `json:"id,omitempty"`
	// +optional
	Source string `json:"source,omitempty"`
	// +optional
	Destination string `json:"destination,omitempty"`
	// +optional
	PodName string `json:"podName,omitempty"`
	// +optional
	Digest string `json:"digest,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// Class of the error that Reason is of.
	//
	// +optional
	Class string `json:"class,omitempty"`
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// Attempts that are over, and why.
	//
	// +listType=atomic
	// +optional
	Attempts []string `json:"attempts,omitempty"`
	// +optional
	Progress Progress `json:"progress,omitzero"`
	// +optional
	Downtime DowntimeSplit `json:"downtime,omitzero"`
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VMOperation orders one thing of one VM.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmop,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.kind`
// +kubebuilder:printcolumn:name="VM",type=string,JSONPath=`.spec.vmRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.status.source`
// +kubebuilder:printcolumn:name="To",type=string,JSONPath=`.status.destination`
// +kubebuilder:printcolumn:name="Downtime",type=integer,JSONPath=`.status.downtime.totalMs`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VMOperation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VMOperationSpec `json:"spec"`
	// +optional
	Status VMOperationStatus `json:"status,omitzero"`
}

// VMOperationList is a list of them.
//
// +kubebuilder:object:root=true
type VMOperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VMOperation `json:"items"`
}
