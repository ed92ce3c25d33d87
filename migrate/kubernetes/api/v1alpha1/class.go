package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Retention bounds the snapshots of a VM that have no name.
type Retention struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Keep *int32 `json:"keep,omitempty"`
}

// VMSnapshotClassSpec is where snapshots lie, and who may put them there. What records have of it cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="has(self.retention) == has(oldSelf.retention) && (!has(self.retention) || self.retention == oldSelf.retention)",message="retention cannot be changed, since VMs have it already: make another VMSnapshotClass"
// +kubebuilder:validation:XValidation:rule="has(self.sealSecretRef) == has(oldSelf.sealSecretRef)",message="sealSecretRef can name another Secret, and be neither added nor removed, since snapshots are sealed or not: make another VMSnapshotClass"
// +kubebuilder:validation:XValidation:rule="has(self.signSecretRef) == has(oldSelf.signSecretRef)",message="signSecretRef can name another Secret, and be neither added nor removed, since snapshots are signed or not: make another VMSnapshotClass"
type VMSnapshotClassSpec struct {
	// Repository is the prefix of each VM's own one.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="repository cannot be changed, since snapshots lie there: make another VMSnapshotClass"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('oci-layout:')",message="repository is that of a registry, and no directory of a node"
	Repository string `json:"repository"`
	// +optional
	PullSecretRef *SecretRef `json:"pullSecretRef,omitempty"`
	// SealSecretRef is of the keys that snapshots are sealed with, and SignSecretRef of the one that signs them.
	//
	// +optional
	SealSecretRef *SecretRef `json:"sealSecretRef,omitempty"`
	// +optional
	SignSecretRef *SecretRef `json:"signSecretRef,omitempty"`
	// +optional
	Retention Retention `json:"retention,omitzero"`
	// AllowedNamespaces may use the class; none: no namespace may.
	//
	// +optional
	AllowedNamespaces *metav1.LabelSelector `json:"allowedNamespaces,omitempty"`
	// MinGraceSeconds is what a pod has at least, from its deletion to its end.
	//
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=86400
	// +optional
	MinGraceSeconds *int32 `json:"minGraceSeconds,omitempty"`
}

// VMSnapshotClass is the administrator's: no namespace names a registry.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=vmsnapclass,categories=godwit
// +kubebuilder:printcolumn:name="Repository",type=string,JSONPath=`.spec.repository`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VMSnapshotClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VMSnapshotClassSpec `json:"spec"`
}

// VMSnapshotClassList is a list of them.
//
// +kubebuilder:object:root=true
type VMSnapshotClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VMSnapshotClass `json:"items"`
}
