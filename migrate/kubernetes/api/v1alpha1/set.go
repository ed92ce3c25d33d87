package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MemberRole is what a VM is to its set.
//
// +kubebuilder:validation:Enum=Main;Member;Helper
type MemberRole string

// The roles.
const (
	RoleMain   MemberRole = "Main"
	RoleMember MemberRole = "Member"
	RoleHelper MemberRole = "Helper"
)

// MoveScope is which VMs of a set a new nodeName moves.
//
// +kubebuilder:validation:Enum=Main;All
type MoveScope string

// The scopes.
const (
	MoveMain MoveScope = "Main"
	MoveAll  MoveScope = "All"
)

// FailurePolicy is what becomes of the rest when one VM of a set fails to move.
//
// +kubebuilder:validation:Enum=Stop;Continue
type FailurePolicy string

// The policies of a failure.
const (
	OnFailureStop     FailurePolicy = "Stop"
	OnFailureContinue FailurePolicy = "Continue"
)

// SetMember is one VM of a set.
type SetMember struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// +kubebuilder:default=Member
	// +optional
	Role MemberRole             `json:"role,omitempty"`
	Spec VirtualMachineSettings `json:"spec"`
}

// VirtualMachineSetSpec is what somebody wants of a set.
//
// +kubebuilder:validation:XValidation:rule="self.members.exists_one(m, m.role == 'Main')",message="one member, and no more, has role Main"
// +kubebuilder:validation:XValidation:rule="!has(self.order) || size(self.order) == 0 || (size(self.order) == size(self.members) && self.members.all(m, m.name in self.order))",message="order must name each member once"
type VirtualMachineSetSpec struct {
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Members []SetMember `json:"members"`
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// NodeName is a wish for the main VM. The others follow its record.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// +kubebuilder:default=Main
	// +optional
	MoveScope MoveScope `json:"moveScope,omitempty"`
	// Order is that of suspension; a resume has the reverse. Empty: helpers, members, main.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Order []string `json:"order,omitempty"`
	// +kubebuilder:default=Stop
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
}

// MemberStatus is what became of one VM of a set.
type MemberStatus struct {
	Name string `json:"name"`
	// +optional
	Phase VMPhase `json:"phase,omitempty"`
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
}

// VirtualMachineSetStatus is a copy of what its VMs say.
type VirtualMachineSetStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase VMPhase `json:"phase,omitempty"`
	// Node of the main VM.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Members []MemberStatus `json:"members,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VirtualMachineSet is several VMs that are suspended, resumed and moved together.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=gvmset,categories=godwit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Suspend",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VirtualMachineSet struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              VirtualMachineSetSpec `json:"spec"`
	// +optional
	Status VirtualMachineSetStatus `json:"status,omitzero"`
}

// VirtualMachineSetList is a list of them.
//
// +kubebuilder:object:root=true
type VirtualMachineSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []VirtualMachineSet `json:"items"`
}
