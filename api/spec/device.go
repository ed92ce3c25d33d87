package spec

import (
	"path"
	"slices"
)

// Device is where a container of a pod has a block device of the node.
type Device struct {
	Disk string `json:"disk"` // Disk.ID
	Path string `json:"path"` // in the container
	Mode uint32 `json:"mode"` // permission bits
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
}

// maxDevices of a member: the hot slots.
const maxDevices = LastHotSlot - FirstHotSlot + 1

// NodeDevices are the ids of disks that are block devices of the node. A VM that has one stays on
// its node and cannot sleep: no snapshot has what is in such a disk.
func (s *Spec) NodeDevices() (ids []string) {
	for _, d := range s.Disks {
		if d.Node {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

func (s *Spec) hasDevice(disk string) bool { return slices.Contains(s.NodeDevices(), disk) }

func (s *Spec) checkDevices(m Member) error {
	if len(m.Devices) > maxDevices {
		return invalid("pod.containers", "%s has %d devices", m.Guest, len(m.Devices))
	}
	for _, d := range m.Devices {
		if !s.hasDevice(d.Disk) || !path.IsAbs(d.Path) || d.Mode&^0o777 != 0 {
			return invalid("pod.containers", "%s: device %q with mode %o at %q", m.Guest, d.Disk, d.Mode, d.Path)
		}
	}
	return nil
}

// Uses reports whether a container or a volume of the pod has the disk.
func (p *Pod) Uses(disk string) bool {
	return slices.ContainsFunc(p.Containers, func(m Member) bool {
		return slices.Contains(m.Layers, disk) ||
			slices.ContainsFunc(m.Devices, func(d Device) bool { return d.Disk == disk })
	}) || slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.Disk == disk })
}

// Mounts reports whether a container of the pod has the volume.
func (p *Pod) Mounts(volume string) bool {
	return slices.ContainsFunc(p.Containers, func(m Member) bool {
		return slices.ContainsFunc(m.Mounts, func(v VolumeMount) bool { return v.Volume == volume })
	})
}
