package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GodwitNodeStatus is what is known of a node. It is written when it changes, and bounded: a node says some of it.
type GodwitNodeStatus struct {
	// Address, by which VMs come to it. The node says it.
	//
	// +kubebuilder:validation:MaxLength=261
	// +optional
	Address string `json:"address,omitempty"`
	// Version of its godwitd. The node says it.
	//
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Version string `json:"version,omitempty"`
	// Up: the operator has heard it lately.
	//
	// +optional
	Up bool `json:"up"`
	// Cordoned: no VM comes to it, by its Node or by `godwit cordon`.
	//
	// +optional
	Cordoned bool `json:"cordoned"`
	// CPU are the classes of VMs that can wake there. The node says them.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	CPU []string `json:"cpu,omitempty"`
	// VMMs that it runs, with their versions. The node says them.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	VMMs []string `json:"vmms,omitempty"`
	// Digests of the newest snapshots that the node has made, by the records. Its cache has most of them.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	Digests []string `json:"digests,omitempty"`
	// VMs that it has, by the records.
	//
	// +optional
	VMs int32 `json:"vms"`
	// RAMBytes are for VMs. The node says it.
	//
	// +optional
	RAMBytes int64 `json:"ramBytes,omitempty"`
	// FreeBytes of them, rounded. The node says it.
	//
	// +optional
	FreeBytes int64 `json:"freeBytes"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GodwitNode is a node that runs VMs, under the name of its Node. It is for people: nothing is decided by it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=gnode,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Up",type=boolean,JSONPath=`.status.up`
// +kubebuilder:printcolumn:name="Cordoned",type=boolean,JSONPath=`.status.cordoned`
// +kubebuilder:printcolumn:name="VMs",type=integer,JSONPath=`.status.vms`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.freeBytes`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GodwitNode struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +optional
	Status GodwitNodeStatus `json:"status,omitzero"`
}

// GodwitNodeList is a list of them.
//
// +kubebuilder:object:root=true
type GodwitNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []GodwitNode `json:"items"`
}
