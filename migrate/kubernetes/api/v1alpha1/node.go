package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GodwitNodeStatus is what a node says of itself. It is written when it changes.
type GodwitNodeStatus struct {
	// +optional
	Address string `json:"address,omitempty"`
	// +optional
	Version string `json:"version,omitempty"`
	// +optional
	Up bool `json:"up,omitempty"`
	// +optional
	Cordoned bool `json:"cordoned,omitempty"`
	// CPU are the classes of VMs that can wake there.
	//
	// +listType=set
	// +optional
	CPU []string `json:"cpu,omitempty"`
	// +listType=set
	// +optional
	VMMs []string `json:"vmms,omitempty"`
	// Digests of snapshots that the node has in its cache.
	//
	// +listType=set
	// +optional
	Digests []string `json:"digests,omitempty"`
	// +optional
	VMs int32 `json:"vms,omitempty"`
	// +optional
	RAMBytes int64 `json:"ramBytes,omitempty"`
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GodwitNode is a node that runs VMs, under the name of its Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=gnode,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Up",type=boolean,JSONPath=`.status.up`
// +kubebuilder:printcolumn:name="Cordoned",type=boolean,JSONPath=`.status.cordoned`
// +kubebuilder:printcolumn:name="VMs",type=integer,JSONPath=`.status.vms`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.freeBytes`
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
