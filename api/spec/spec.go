// Package spec holds Spec, the single description of a VM. It is made once, when the
// VM is first created, kept by the shim, stored in every snapshot and never changed
// by a move. The VMM's own configuration is derived from it on each node.
package spec

import (
	"encoding/json"
	"net/netip"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/version"
)

// Version is the newest schema that this build knows. It writes the oldest one that can say what a Spec
// holds: builds of earlier releases read that.
const Version = version.Spec

// versionWithoutPods is the schema of a Spec without a pod.
const versionWithoutPods = 1

// AnnotationPrefix is that of all annotations that godwit reads. AnnotationDigest is none for
// users. godwitd writes it on a container: the snapshot that its VM left in. So no Create boots
// the container fresh, even if the records have forgotten the VM.
const (
	AnnotationPrefix = "godwit.dev/"
	AnnotationDigest = AnnotationPrefix + "digest"
	// AnnotationAddresses and AnnotationMAC are in the state that OCI hooks get of a VM that comes with a NIC: what its
	// guest has, addresses with commas between. Who makes its network should give it the same.
	AnnotationAddresses = AnnotationPrefix + "addresses"
	AnnotationMAC       = AnnotationPrefix + "mac"
	// AnnotationVM names the VM of a pod, below the pod's namespace. A pod without it cannot sleep or move: the next
	// sandbox would not find it.
	AnnotationVM = AnnotationPrefix + "vm"
	// AnnotationOnStop says what becomes of the VM of a pod that is stopped and not only ended. The controller has to
	// know the pod: it says why the pod is stopped.
	AnnotationOnStop = AnnotationPrefix + "on-stop"
	OnStopHibernate  = "hibernate"
)

// AnnotationContainer is none for users, and none that travels. godwitd writes it on a container that it makes without
// a root file system: it tells that one from another of the same name. Older shims do not know it, so it has a prefix
// of its own.
const AnnotationContainer = "container.godwit.dev/id"

// Spec describes one VM independently of the node that runs it: no host path, socket
// or device number is in it.
type Spec struct {
	Version   int    `json:"version"`
	Namespace string `json:"namespace"` // containerd's
	ID        string `json:"id"`        // the container's
	UID       string `json:"uid"`       // from the record; made here on a node without one

	VMM    VMM    `json:"vmm"`
	Memory uint64 `json:"memory"` // bytes, a multiple of 2 MiB
	VCPUs  int    `json:"vcpus"`
	Kernel Kernel `json:"kernel"`
	Disks  []Disk `json:"disks"` // in slot order
	NICs   []NIC  `json:"nics"`
	// Recycle: the NICs are taken out of the running guest before a snapshot is made, and
	// plugged in anew after a restore. Some guests never find a NIC again that came back
	// with their memory.
	Recycle bool `json:"recycle,omitempty"`

	// Container is what containerd was asked for: of a VM disk its OCI field alone, from
	// which another node makes the container object.
	Container *Container `json:"container,omitempty"`
	// VMDisk is set for a VM that boots a system of its own. It has no agent.
	VMDisk *VMDisk `json:"vmDisk,omitempty"`
	// Pod is set for a pod of CRI, whose VM has several containers (schema 2).
	Pod *Pod `json:"pod,omitempty"`
	// Annotations are the godwit.dev/ ones that were honoured.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// VMM names what the device state was made by. Machine and CPU are QEMU's -machine
// (always a versioned name) and -cpu; Cloud Hypervisor has no machine, and CPU "host".
type VMM struct {
	Name    string `json:"name"` // "qemu" or "cloud-hypervisor"
	Machine string `json:"machine,omitempty"`
	CPU     string `json:"cpu,omitempty"`
}

// Kernel identifies the guest kernel and initramfs that the VM was booted with. They
// lie in its RAM afterwards, so a waking node does not need them.
type Kernel struct {
	Version string `json:"version"`
	Digest  string `json:"digest"` // sha256 of kernel and initramfs files, in that order
	Cmdline string `json:"cmdline"`
}

// Disk is one block device. Serial is what the guest finds it by.
type Disk struct {
	ID       string `json:"id"`     // "layer0".., "rw"
	Serial   string `json:"serial"` // at most 20 bytes
	Slot     int    `json:"slot"`   // PCI slot, the same on every node
	ReadOnly bool   `json:"readOnly,omitempty"`
	Type     string `json:"type"`             // file system in it: erofs, ext4; of a VM disk: see TypeRaw
	Size     int64  `json:"size"`             // bytes
	Digest   string `json:"digest,omitempty"` // sha256 of the file, for a read-only disk
	// Node: it is a block device of the node that a pod has as a volume. No snapshot has what is in it.
	Node bool `json:"node,omitempty"`
}

// NIC is one network interface as the guest has it.
type NIC struct {
	ID        string         `json:"id"`   // "net0"
	Name      string         `json:"name"` // in the guest: "eth0"
	Slot      int            `json:"slot"`
	MAC       string         `json:"mac"`
	MTU       int            `json:"mtu"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Routes    []Route        `json:"routes,omitempty"`
}

// Route of a NIC. A zero Destination is the default route of its family.
type Route struct {
	Destination netip.Prefix `json:"destination,omitzero"`
	Gateway     netip.Addr   `json:"gateway,omitzero"` // zero: on link
	Source      netip.Addr   `json:"source,omitzero"`
	Scope       int          `json:"scope,omitempty"` // as in rtnetlink(7)
	IPv6        bool         `json:"ipv6,omitempty"`  // of the destination; an IPv4 route may have an IPv6 gateway
	Metric      int          `json:"metric,omitempty"`
	OnLink      bool         `json:"onLink,omitempty"` // the gateway is on the link though no address says so
	MTU         int          `json:"mtu,omitempty"`    // bytes; 0: that of the NIC
	AdvMSS      int          `json:"advmss,omitempty"` // bytes; 0: the kernel's choice
}

// Container is what runs in a VM that was made from a container image.
type Container struct {
	// OCI is the runtime spec as it was given, less what the host alone honours
	// (namespaces' paths, host cgroup path, hooks). The destination's container object
	// is made from it.
	OCI *specs.Spec `json:"oci"`
	// Layers are the disks of the root file system, topmost first, by Disk.ID; Writable
	// is the disk that takes the changes.
	Layers   []string `json:"layers"`
	Writable string   `json:"writable"`
	// MapLayers: the files of the layers have ids of the container, and the guest maps them. Those of the writable disk
	// have ids of the guest.
	MapLayers bool `json:"mapLayers,omitempty"`
	// Image is the digest of the container image where containerd told it.
	Image string `json:"image,omitempty"`
}

// Disk returns the disk of that id, or nil.
func (s *Spec) Disk(id string) *Disk {
	for i := range s.Disks {
		if s.Disks[i].ID == id {
			return &s.Disks[i]
		}
	}
	return nil
}

// Clone returns a copy that shares nothing with s.
func (s *Spec) Clone() *Spec {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // Spec holds nothing that JSON cannot
	}
	c := new(Spec)
	if err := json.Unmarshal(data, c); err != nil {
		panic(err)
	}
	return c
}
