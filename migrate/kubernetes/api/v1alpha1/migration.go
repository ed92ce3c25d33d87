package v1alpha1

// Lane is how a VM moves.
//
// +kubebuilder:validation:Enum=Auto;Live;Cold
type Lane string

// The lanes. Auto becomes one of the others before anything is made.
const (
	LaneAuto Lane = "Auto"
	LaneLive Lane = "Live"
	LaneCold Lane = "Cold"
)

// AbortReason is what ends a live move that goes badly.
//
// +kubebuilder:validation:Enum=Downtime;Stall
type AbortReason string

// What ends a move.
const (
	AbortOnDowntime AbortReason = "Downtime"
	AbortOnStall    AbortReason = "Stall"
)

// MigrationPolicy is how a VM moves, where its order says nothing else.
type MigrationPolicy struct {
	// +kubebuilder:default=Auto
	// +optional
	Lane Lane `json:"lane,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60000
	// +optional
	MaxDowntimeMs *int32 `json:"maxDowntimeMs,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +optional
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
	// BandwidthPerSecond is in bytes.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	BandwidthPerSecond *int64 `json:"bandwidthPerSecond,omitempty"`
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	AbortOn []AbortReason `json:"abortOn,omitempty"`
}
