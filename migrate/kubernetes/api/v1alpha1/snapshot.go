package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DeletionPolicy is what becomes of a snapshot whose object is deleted.
//
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

// The policies of a deletion.
const (
	DeletionDelete DeletionPolicy = "Delete"
	DeletionRetain DeletionPolicy = "Retain"
)

// SnapshotSource is a VM, or the pod of one.
//
// +kubebuilder:validation:XValidation:rule="has(self.vmRef) != has(self.podRef)",message="one of vmRef and podRef, and not both"
type SnapshotSource struct {
	// +optional
	VMRef *VMRef `json:"vmRef,omitempty"`
	// +optional
	PodRef *PodRef `json:"podRef,omitempty"`
}

// VMSnapshotSpec is an order for a snapshot. It cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a snapshot cannot be changed: make another VMSnapshot"
type VMSnapshotSpec struct {
	Source SnapshotSource `json:"source"`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ClassName string `json:"className,omitempty"`
	// +kubebuilder:default=Delete
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// VMSnapshotStatus says what became of it.
type VMSnapshotStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	BoundSnapshotContentName string `json:"boundSnapshotContentName,omitempty"`
	// +optional
	Digest string `json:"digest,omitempty"`
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// VMName is the VM that podRef has meant.
	// +optional
	VMName string `json:"vmName,omitempty"`
	// Images are those that ran when it was taken, by container.
	// +optional
	Images map[string]string `json:"images,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VMSnapshot is a checkpoint with a name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vmsnap,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source.vmRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Content",type=string,JSONPath=`.status.boundSnapshotContentName`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.status.bytes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VMSnapshot struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VMSnapshotSpec `json:"spec"`
	// +optional
	Status VMSnapshotStatus `json:"status,omitzero"`
}

// VMSnapshotList is a list of them.
//
// +kubebuilder:object:root=true
type VMSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VMSnapshot `json:"items"`
}
