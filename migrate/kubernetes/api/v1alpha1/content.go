package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ContentSource is the pod to capture and its node. What to capture is read from the VM.
type ContentSource struct {
	PodRef NamespacedRef `json:"podRef"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
}

// VMSnapshotContentSpec is a work order for a node. It cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a work order cannot be changed"
type VMSnapshotContentSpec struct {
	SnapshotRef NamespacedRef `json:"snapshotRef"`
	Source      ContentSource `json:"source"`
	// Repository is the prefix of each VM's own one, by the class of the snapshot; empty: where the VM's others go.
	//
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Repository string `json:"repository,omitempty"`
	// Sealed and Signed are the class's word when it was ordered, or without one that of the record of the VM.
	//
	// +optional
	Sealed bool `json:"sealed,omitempty"`
	// +optional
	Signed bool `json:"signed,omitempty"`
}

// VMSnapshotContentStatus is the node's word.
type VMSnapshotContentStatus struct {
	// +optional
	Digest string `json:"digest,omitempty"`
	// +optional
	Repository string `json:"repository,omitempty"`
	// Receipt is what the node said of the capture.
	//
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Receipt string `json:"receipt,omitempty"`
	// Generation is that of the VM's record.
	//
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VMSnapshotContent is the work order that a VMSnapshot becomes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=vmsnapcontent,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Snapshot",type=string,JSONPath=`.spec.snapshotRef.name`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.source.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Digest",type=string,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VMSnapshotContent struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VMSnapshotContentSpec `json:"spec"`
	// +optional
	Status VMSnapshotContentStatus `json:"status,omitzero"`
}

// VMSnapshotContentList is a list of them.
//
// +kubebuilder:object:root=true
type VMSnapshotContentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VMSnapshotContent `json:"items"`
}
