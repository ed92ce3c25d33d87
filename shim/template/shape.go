// Package template keeps VMs that were booted once and told nothing: RAM and device state of a
// guest whose agent waits at its port. A VM of the same shape starts as a copy of one instead of
// booting. Templates lie on the node's disk, are made in the background, and are never needed: a
// VM that finds none, or a bad one, boots.
package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Shape is all that a guest, and a VMM's state of it, may depend on before a container is
// known. VMs of one shape differ in the content of their disks, and in what they are told.
type Shape struct {
	Build    string `json:"build"` // of godwit: what it asks of a VMM
	Guest    string `json:"guest"` // digest of kernel and initramfs
	Cmdline  string `json:"cmdline"`
	VMM      string `json:"vmm"`
	Version  string `json:"version"` // of the VMM
	Machine  string `json:"machine,omitempty"`
	CPU      string `json:"cpu,omitempty"`
	Accel    string `json:"accel,omitempty"`
	Features string `json:"features,omitempty"` // digest of the host's CPU, where the guest sees it
	Memory   uint64 `json:"memory"`
	VCPUs    int    `json:"vcpus"`
	Disks    []Disk `json:"disks,omitempty"`
	NICs     []int  `json:"nics,omitempty"`     // slots
	HotDisks bool   `json:"hotDisks,omitempty"` // disks may be added while the VM runs, as to a pod
}

// Disk of a Shape.
type Disk struct {
	Slot     int  `json:"slot"`
	ReadOnly bool `json:"readOnly,omitempty"`
}

// Key names the shape.
func (s Shape) Key() string {
	data, err := json.Marshal(s)
	if err != nil {
		panic("template: a Shape holds nothing that cannot be encoded")
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
