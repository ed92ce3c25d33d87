package v1alpha1

import corev1 "k8s.io/api/core/v1"

// OperatingMode is what a VM should be.
//
// +kubebuilder:validation:Enum=Running;Hibernated;Stopped
type OperatingMode string

// The modes.
const (
	ModeRunning    OperatingMode = "Running"
	ModeHibernated OperatingMode = "Hibernated"
	ModeStopped    OperatingMode = "Stopped"
)

// EvictionStrategy is what becomes of a VM whose pod is evicted.
//
// +kubebuilder:validation:Enum=Live;Cold;Hibernate;None
type EvictionStrategy string

// The strategies.
const (
	EvictionLive      EvictionStrategy = "Live"
	EvictionCold      EvictionStrategy = "Cold"
	EvictionHibernate EvictionStrategy = "Hibernate"
	EvictionNone      EvictionStrategy = "None"
)

// Eviction is about the end of a VM's pod.
type Eviction struct {
	// +kubebuilder:default=Live
	// +optional
	Strategy EvictionStrategy `json:"strategy,omitempty"`
}

// NetworkMode is what address a VM has after a move.
//
// +kubebuilder:validation:Enum=Readdress;Masquerade;Keep
type NetworkMode string

// The modes of the network.
const (
	NetworkReaddress  NetworkMode = "Readdress"
	NetworkMasquerade NetworkMode = "Masquerade"
	NetworkKeep       NetworkMode = "Keep"
)

// NodeLossPolicy is what becomes of a VM whose node is proved to be lost.
//
// +kubebuilder:validation:Enum=Wait;Restore
type NodeLossPolicy string

// The policies.
const (
	NodeLossWait    NodeLossPolicy = "Wait"
	NodeLossRestore NodeLossPolicy = "Restore"
)

// VirtualMachineSettings are what a VM and a member of a set have in common.
type VirtualMachineSettings struct {
	// Template is of the pod. A change counts for the next boot, never for a wake.
	Template corev1.PodTemplateSpec `json:"template"`
	// +kubebuilder:default={}
	// +optional
	Eviction Eviction `json:"eviction,omitzero"`
	// +kubebuilder:default={}
	// +optional
	Migration MigrationPolicy `json:"migration,omitzero"`
	// SnapshotClassName cannot be changed: the snapshots that there are lie where the class says.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SnapshotClassName string `json:"snapshotClassName,omitempty"`
	// +kubebuilder:default=Readdress
	// +optional
	Network NetworkMode `json:"network,omitempty"`
	// +kubebuilder:default=Wait
	// +optional
	OnNodeLoss NodeLossPolicy `json:"onNodeLoss,omitempty"`
	// RestoreFrom is the VMSnapshot that the VM begins from, in place of a boot.
	//
	// +optional
	RestoreFrom *LocalRef `json:"restoreFrom,omitempty"`
}

// VirtualMachineSpec is what somebody wants of a VM.
//
// +kubebuilder:validation:XValidation:rule="has(self.snapshotClassName) == has(oldSelf.snapshotClassName) && (!has(self.snapshotClassName) || self.snapshotClassName == oldSelf.snapshotClassName)",message="snapshotClassName cannot be changed: make another VirtualMachine"
// +kubebuilder:validation:XValidation:rule="has(self.restoreFrom) == has(oldSelf.restoreFrom) && (!has(self.restoreFrom) || self.restoreFrom == oldSelf.restoreFrom)",message="restoreFrom cannot be changed: make another VirtualMachine"
type VirtualMachineSpec struct {
	VirtualMachineSettings `json:",inline"`
	// +kubebuilder:default=Running
	// +optional
	OperatingMode OperatingMode `json:"operatingMode,omitempty"`
	// NodeName is a wish: the scheduler still says whether the VM fits there.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName string `json:"nodeName,omitempty"`
}
