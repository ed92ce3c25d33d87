package spec

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Pod is set for a VM that CRI asked for as a pod. Its containers come and go while the VM runs, each
// with a call Create of its own. The VM itself is the pod's sandbox.
type Pod struct {
	Namespace string            `json:"namespace"` // Kubernetes's, as CRI tells it
	Name      string            `json:"name"`
	UID       string            `json:"uid,omitempty"`
	Hostname  string            `json:"hostname,omitempty"`
	Sysctl    map[string]string `json:"sysctl,omitempty"`

	// Users is the user namespace of all containers; nil: the guest's own.
	Users *Users `json:"users,omitempty"`

	// Writable is the disk, by Disk.ID, that takes what all containers write, and the volumes of
	// kind VolumeDisk.
	Writable string `json:"writable"`
	// Issued counts the guest ids that were given. No id is used twice in a VM.
	Issued     int      `json:"issued"`
	Containers []Member `json:"containers,omitempty"` // in the order in which they came
	Volumes    []Volume `json:"volumes,omitempty"`
}

// Member is a container of a pod. Writable of its Container is empty: the pod has one for all.
type Member struct {
	Guest string `json:"guest"` // its id in the guest: "c1", "c2"..
	Name  string `json:"name"`  // CRI's name for it, which stays the same when it is made anew
	// PID is the pid namespace: empty for one of its own, PIDPod, or the guest id of the member whose
	// namespace it joins.
	PID    string        `json:"pid,omitempty"`
	Mounts []VolumeMount `json:"mounts,omitempty"`
	// Devices are block devices of the node that the container has as such.
	Devices []Device `json:"devices,omitempty"`
	// ImageID is the digest of the image's configuration: the same wherever the image was pulled from, and another one
	// once its name stands for another image. Empty: it could not be learnt when the container was made.
	ImageID string `json:"imageId,omitempty"`
	Container
}

// PIDPod is the pid namespace that the containers of a pod share. SandboxProcess is the guest's name for the
// process that holds it: the init of the sandbox.
const (
	PIDPod         = "pod"
	SandboxProcess = "pod"
)

// Kinds of volumes.
const (
	VolumeDisk    = "disk"    // a directory on the pod's writable disk
	VolumeMemory  = "memory"  // a tmpfs in the guest
	VolumeSynced  = "synced"  // files of the host, kept fresh in the guest
	VolumeMounted = "mounted" // the file system on a disk that is a block device of the node
)

// Volume is a directory in the guest that several containers may have.
type Volume struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	Size uint64 `json:"size,omitempty"` // bytes, of VolumeMemory; 0: half of the guest's RAM
	Mode uint32 `json:"mode,omitempty"` // permission bits of the directory
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
	// Mapped: its owners are ids of the containers, and the guest maps them.
	Mapped bool `json:"mapped,omitempty"`
	// Of VolumeMounted: the disk, by Disk.ID, whose Type is the file system, and the options of the mount.
	Disk    string   `json:"disk,omitempty"`
	Options []string `json:"options,omitempty"`
}

// IsMappedDisk reports whether the guest mounts the volume with its ids mapped. In other volumes it makes the files
// itself, with the owners that they are to have.
func (v *Volume) IsMappedDisk() bool { return v.Mapped && v.Kind == VolumeMounted }

// VolumeMount is where a container has a volume.
type VolumeMount struct {
	Volume  string   `json:"volume"`         // Volume.ID
	Path    string   `json:"path,omitempty"` // below the volume; empty: the volume itself
	Target  string   `json:"target"`
	Options []string `json:"options,omitempty"`
}

// Bounds of a pod.
const (
	maxMembers = 256
	maxVolumes = 256
	maxMounts  = 256 // of a member
)

// FirstHotSlot to LastHotSlot are for disks that are added while the VM runs, with every VMM.
const (
	FirstHotSlot = 32
	LastHotSlot  = 47
)

var (
	guestID  = regexp.MustCompile(`^c[1-9][0-9]{0,8}$`)
	imageID  = regexp.MustCompile(`^sha(256|512):[0-9a-f]{64,128}$`)
	volumeID = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)
)

// Member returns the container of that guest id, or nil.
func (p *Pod) Member(guest string) *Member {
	for i := range p.Containers {
		if p.Containers[i].Guest == guest {
			return &p.Containers[i]
		}
	}
	return nil
}

// Missing names what keeps a restored pod from running: the sandbox, and each container that is not ready.
func (p *Pod) Missing(sandbox bool, ready func(guest string) bool) (names []string) {
	if !sandbox {
		names = append(names, "the sandbox")
	}
	for _, m := range p.Containers {
		if !ready(m.Guest) {
			names = append(names, m.Name)
		}
	}
	return names
}

// Volume returns the volume of that id, or nil.
func (p *Pod) Volume(id string) *Volume {
	for i := range p.Volumes {
		if p.Volumes[i].ID == id {
			return &p.Volumes[i]
		}
	}
	return nil
}

// Schema is the version that s is written as: a build that knows no pods reads a Spec without one.
func (s *Spec) Schema() int {
	if s.Pod != nil {
		return Version
	}
	return versionWithoutPods
}

func (s *Spec) checkPod() error {
	p := s.Pod
	switch {
	case p == nil:
		return nil
	case s.Container != nil || s.VMDisk != nil:
		return invalid("pod", "in addition to container or vmDisk")
	case p.Name == "" || p.Namespace == "":
		return invalid("pod", "name %q or namespace %q is empty", p.Name, p.Namespace)
	case p.Writable != "" && s.Disk(p.Writable) == nil:
		return invalid("pod.writable", "disk %q is none of the Spec's", p.Writable)
	case p.Users.Check() != nil:
		return fmt.Errorf("spec: pod.users: %w", p.Users.Check())
	case len(p.Containers) > maxMembers || len(p.Volumes) > maxVolumes:
		return invalid("pod", "%d containers, %d volumes", len(p.Containers), len(p.Volumes))
	}
	seen := map[string]bool{}
	for _, v := range p.Volumes {
		kinds := []string{VolumeDisk, VolumeMemory, VolumeSynced, VolumeMounted}
		if seen[v.ID] || !volumeID.MatchString(v.ID) || !slices.Contains(kinds, v.Kind) {
			return invalid("pod.volumes", "%q: twice, no id, or of kind %q", v.ID, v.Kind)
		}
		if (v.Kind == VolumeMounted) != (v.Disk != "") || v.Disk != "" && !s.hasDevice(v.Disk) {
			return invalid("pod.volumes", "%s: of kind %q, with disk %q", v.ID, v.Kind, v.Disk)
		}
		seen[v.ID] = true
	}
	for _, m := range p.Containers {
		if err := s.checkMember(m, seen); err != nil {
			return err
		}
		seen[m.Guest] = true
	}
	return nil
}

// checkNames checks what m calls others by.
func (m *Member) checkNames() error {
	switch {
	case m.PID != "" && m.PID != PIDPod && !guestID.MatchString(m.PID):
		return invalid("pod.containers", "%s: pid namespace %q", m.Guest, m.PID)
	case m.ImageID != "" && !imageID.MatchString(m.ImageID):
		return invalid("pod.containers", "%s: image id %q", m.Guest, m.ImageID)
	}
	return nil
}

func (s *Spec) checkMember(m Member, seen map[string]bool) error {
	var number int
	_, err := fmt.Sscanf(m.Guest, "c%d", &number)
	switch {
	case err != nil || !guestID.MatchString(m.Guest) || seen[m.Guest] || number > s.Pod.Issued:
		return invalid("pod.containers", "guest id %q: twice, or not one of the %d given", m.Guest, s.Pod.Issued)
	case m.Name == "":
		return invalid("pod.containers", "%s has no name", m.Guest)
	case m.Writable != "":
		return invalid("pod.containers", "%s has a writable disk %q of its own", m.Guest, m.Writable)
	case len(m.Mounts) > maxMounts:
		return invalid("pod.containers", "%s has %d mounts of volumes", m.Guest, len(m.Mounts))
	}
	for _, v := range m.Mounts {
		if s.Pod.Volume(v.Volume) == nil || !path.IsAbs(v.Target) || path.IsAbs(v.Path) ||
			slices.Contains(strings.Split(v.Path, "/"), "..") {
			return invalid("pod.containers", "%s: volume %q, path %q at %q", m.Guest, v.Volume, v.Path, v.Target)
		}
	}
	if err := errors.Join(m.checkNames(), s.checkDevices(m)); err != nil {
		return err
	}
	if err := m.Container.check(true); err != nil {
		return err
	}
	for _, id := range m.Layers {
		if s.Disk(id) == nil {
			return invalid("pod.containers", "%s: disk %q is none of the Spec's", m.Guest, id)
		}
	}
	return nil
}
