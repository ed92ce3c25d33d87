package record

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
)

// Receipt is a node's word on its side of an operation. For a hibernate it says that the
// snapshot is whole and the VM stopped. For a checkpoint it says that it is whole, for a wake
// how long it took. It travels as JSON in the operation.
type Receipt struct {
	Operation     string  `json:"operation"`
	Attempt       uint32  `json:"attempt"`
	Generation    uint64  `json:"generation"` // of the owner before
	Digest        string  `json:"digest"`
	Stopped       bool    `json:"stopped"`
	PauseMS       float64 `json:"pause_ms,omitempty"`
	DurableMS     float64 `json:"durable_ms,omitempty"`
	WakeMS        float64 `json:"wake_ms,omitempty"` // from the order to a VM that runs
	RAMBytes      uint64  `json:"ram_bytes,omitempty"`
	ResidentBytes uint64  `json:"resident_bytes,omitempty"`
	PushedBytes   uint64  `json:"pushed_bytes,omitempty"`
	TotalBytes    uint64  `json:"total_bytes,omitempty"`
	VMM           string  `json:"vmm,omitempty"`

	// Of a move.
	CopyMS float64 `json:"copy_ms,omitempty"` // from the stop until the destination had all of it
	VoteMS float64 `json:"vote_ms,omitempty"`
	// when the VM stopped: unix, nanoseconds, by the clock of the node that drives
	StopAt     int64  `json:"stop_at,omitempty"`
	MovedBytes uint64 `json:"moved_bytes,omitempty"` // on the wire

	// Of a VM that was captured while it ran. The pause is the VMM's stop, the saving of the device
	// state, and the last pass, one after the other.
	Tracking  string  `json:"tracking,omitempty"`
	Untracked string  `json:"untracked,omitempty"` // why not better
	Passes    []Pass  `json:"passes,omitempty"`    // the last one in the pause
	DeadBytes uint64  `json:"dead_bytes,omitempty"`
	StopMS    float64 `json:"stop_ms,omitempty"`
	SaveMS    float64 `json:"save_ms,omitempty"`

	InsideBytes uint64   `json:"inside_bytes,omitempty"` // sent in the pause, for want of memory
	Notes       []string `json:"notes,omitempty"`        // what else took part of the pause
}

// Pass is one look at the pages of a VM.
type Pass struct {
	LookedBytes uint64  `json:"looked_bytes"`
	SentBytes   uint64  `json:"sent_bytes"`           // new or changed
	LeftBytes   uint64  `json:"left_bytes,omitempty"` // that keep changing
	MS          float64 `json:"ms"`
}

// Outcome is how long the VM of a move stood still, told once it runs. It travels as
// JSON in the operation.
type Outcome struct {
	DowntimeMS float64 `json:"downtime_ms"`
	CopyMS     float64 `json:"copy_ms"`
	VoteMS     float64 `json:"vote_ms"`
	CommitMS   float64 `json:"commit_ms"`
	RunMS      float64 `json:"run_ms"`
	TotalMS    float64 `json:"total_ms"`
}

// String is the outcome as it is stored.
func (o Outcome) String() string {
	b, _ := json.Marshal(o) // of numbers: it cannot fail
	return string(b)
}

// ParseOutcome reads what String wrote; of anything else it answers false.
func ParseOutcome(s string) (o Outcome, ok bool) {
	return o, json.Unmarshal([]byte(s), &o) == nil
}

// String is the receipt as it is stored.
func (r Receipt) String() string {
	b, _ := json.Marshal(r) // of scalars: it cannot fail
	return string(b)
}

// ParseReceipt reads what String wrote.
func ParseReceipt(s string) (Receipt, error) {
	var r Receipt
	if err := json.Unmarshal([]byte(s), &r); err != nil {
		return Receipt{}, fmt.Errorf("parse receipt %q: %w: %w", s, err, errdefs.ErrFailedPrecondition)
	}
	return r, nil
}
