package spec

import (
	"fmt"
	"net"
	"regexp"

	"github.com/containerd/errdefs"
)

// Bounds of what a Spec may ask for. A node's own may be narrower.
const (
	maxMemory = 16 << 40
	maxVCPUs  = 240
	maxDisks  = 32
	maxNICs   = 8
	maxSlot   = 31
	maxList   = 1024 // addresses or routes of a NIC
)

// linkName is what Linux takes for an interface, less what no tool can show.
var linkName = regexp.MustCompile(`^[!-.0-~]{1,15}$`)

// Check refuses a Spec that no build can have written. It may come from anywhere, and the code
// that reads it afterwards does not check it again. The error names the field.
func (s *Spec) Check() error {
	if err := s.checkSize(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, d := range s.Disks {
		if seen[d.ID] || d.Slot < 0 || d.Slot > s.lastSlot() || d.Size <= 0 || len(d.Serial) > 20 {
			return invalid("disks", "%q: twice, or slot %d, size %d or serial %q", d.ID, d.Slot, d.Size, d.Serial)
		}
		if d.Node && (s.Pod == nil || d.Slot < FirstHotSlot) {
			return invalid("disks", "%q: a device of the node in slot %d, or in no pod", d.ID, d.Slot)
		}
		seen[d.ID] = true
	}
	for _, n := range s.NICs {
		if err := n.check(); err != nil {
			return err
		}
	}
	for _, check := range []func() error{s.checkVMDisk, s.checkSigns, s.checkPod} {
		if err := check(); err != nil {
			return err
		}
	}
	return s.checkContainer()
}

func (s *Spec) checkSize() error {
	switch {
	case s.Version < 1 || s.Version > Version:
		return invalid("version", "%d", s.Version)
	case s.Pod != nil && s.Version < Version:
		return invalid("version", "%d, and it has a pod", s.Version)
	case s.Memory == 0 || s.Memory > maxMemory || s.Memory%4096 != 0:
		return invalid("memory", "%d bytes", s.Memory)
	case s.VCPUs < 1 || s.VCPUs > maxVCPUs:
		return invalid("vcpus", "%d", s.VCPUs)
	case len(s.Disks) > maxDisks:
		return invalid("disks", "%d of them", len(s.Disks))
	case len(s.NICs) > maxNICs:
		return invalid("nics", "%d of them", len(s.NICs))
	}
	return nil
}

func (n NIC) check() error {
	mac, err := net.ParseMAC(n.MAC)
	switch {
	case err != nil || len(mac) != 6:
		return invalid("nics", "%s: MAC %q", n.ID, n.MAC)
	case !linkName.MatchString(n.Name) || n.Name == "." || n.Name == "..":
		return invalid("nics", "%s: name %q", n.ID, n.Name)
	case n.MTU < 68 || n.MTU > 65535 || n.Slot < 0 || n.Slot > maxSlot:
		return invalid("nics", "%s: MTU %d or slot %d", n.ID, n.MTU, n.Slot)
	case len(n.Addresses) > maxList || len(n.Routes) > maxList:
		return invalid("nics", "%s: %d addresses, %d routes", n.ID, len(n.Addresses), len(n.Routes))
	}
	for _, a := range n.Addresses {
		if !a.IsValid() {
			return invalid("nics", "%s: an address is none", n.ID)
		}
	}
	return nil
}

func (s *Spec) checkContainer() error {
	c := s.Container
	switch {
	case c == nil && s.VMDisk != nil:
		return invalid("container", "missing; a VM with a VM disk needs it too")
	case c == nil:
		return nil
	}
	if err := c.check(s.HasAgent()); err != nil {
		return err
	}
	for _, id := range append([]string{c.Writable}, c.Layers...) {
		if id != "" && s.Disk(id) == nil {
			return invalid("container", "disk %q is none of the Spec's", id)
		}
	}
	return nil
}

// check looks at the container alone. agent says that the guest has one, which is told what to run.
func (c *Container) check(agent bool) error {
	switch {
	case c.OCI == nil:
		return invalid("container.oci", "missing")
	case c.OCI.Process == nil || len(c.OCI.Process.Args) == 0 && agent:
		return invalid("container.oci.process", "missing, or without args")
	case c.OCI.Linux == nil:
		return invalid("container.oci.linux", "missing")
	case c.MapLayers && c.Users() == nil:
		return invalid("container.mapLayers", "without a user namespace")
	}
	if err := c.Users().Check(); err != nil {
		return fmt.Errorf("spec: container.oci: %w", err)
	}
	return nil
}

// lastSlot is the largest slot that a disk may have: disks of a pod are added while it runs.
func (s *Spec) lastSlot() int {
	if s.Pod != nil {
		return LastHotSlot
	}
	return maxSlot
}

func invalid(field, text string, args ...any) error {
	return fmt.Errorf("spec: %s: "+text+": %w", append(append([]any{field}, args...), errdefs.ErrInvalidArgument)...)
}
