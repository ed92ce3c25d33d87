// Package network joins the network namespace of a task to the NICs of its VM. It reads what a CNI plugin made there,
// moves addresses into the guest's description, and connects a tap to each interface. Detach takes it all back.
//
// The shim calls Read and Attach at Start, and Up when the VM may talk. It calls Down before its VMM is stopped for
// good, Announce after a move, and Detach at the end.
package network

import (
	"net/netip"

	"godwit.dev/godwit/api/spec"
)

// Owner tags every tap, so that a scan finds what no record knows.
type Owner struct {
	Node       string // of the host that has the tap: 12 hexadecimal digits
	VM         string // namespace/id
	Generation uint64
	Attempt    uint32
}

// Link is one interface of the namespace that has its tap. It is durable: the shim
// writes it down before Attach changes anything, and Detach needs nothing else.
type Link struct {
	Interface string   `json:"interface"`      // in the namespace: "eth0"
	Tap       string   `json:"tap"`            // "tap0"
	Sink      string   `json:"sink,omitempty"` // tap that gets the guest's DHCP, see Serve: "dhcp0"; empty: none
	NIC       spec.NIC `json:"nic"`            // as the guest has it; Read fills it as found
	Found     Found    `json:"found"`          // what Detach puts back; only Read writes it
	// Spoof is what the guest may name as its source, SpoofAllow or SpoofDeny; empty is SpoofAllow.
	Spoof string `json:"spoof,omitempty"`
	// Owner is whose tap it is, as Own writes it. Detach and Leave touch nothing that is another
	// owner's by now. Empty in what a build before has written.
	Owner string `json:"owner,omitempty"`
	// Neighbors are MACs of gateways, see FindGateways.
	Neighbors map[netip.Addr]string `json:"neighbors,omitempty"`
}
