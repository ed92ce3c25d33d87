package record

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
)

// Receipt is a node's word on its side of an operation: for a hibernate that the snapshot
// is whole and the VM stopped, for a wake how long it took. It travels as JSON in the
// operation.
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
