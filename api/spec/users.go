package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Users is the user namespace of a container, or of all containers of a pod. It maps their ids to those of the guest.
type Users struct {
	UIDs []specs.LinuxIDMapping `json:"uids"`
	GIDs []specs.LinuxIDMapping `json:"gids"`
}

// Users answers the container's own; nil: it has the guest's.
func (c *Container) Users() *Users {
	if c == nil {
		return nil
	}
	return UsersOf(c.OCI)
}

// UsersOf answers the user namespace that an OCI spec asks for; nil: none.
func UsersOf(oci *specs.Spec) *Users {
	if oci == nil || oci.Linux == nil || !slices.ContainsFunc(oci.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.UserNamespace
	}) {
		return nil
	}
	return &Users{UIDs: oci.Linux.UIDMappings, GIDs: oci.Linux.GIDMappings}
}

// Of answers the user namespace of a container of s: that of the pod, also if the node of today would map its ids
// otherwise.
func (s *Spec) Of(c *Container) *Users {
	if s.Pod != nil {
		return s.Pod.Users
	}
	return c.Users()
}

// Owner answers the guest's ids of an owner that the container knows by these. Where an id is not mapped, the container
// sees user 65534.
func (u *Users) Owner(uid, gid uint32) (uint32, uint32) {
	if u == nil {
		return uid, gid
	}
	return guestOf(u.UIDs, uid), guestOf(u.GIDs, gid)
}

func guestOf(maps []specs.LinuxIDMapping, id uint32) uint32 {
	for _, m := range maps {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return m.HostID + (id - m.ContainerID)
		}
	}
	id = overflow
	for inGuest(maps, id) {
		id++ // at most the last one: lastID has no mapping
	}
	return id
}

func inGuest(maps []specs.LinuxIDMapping, id uint32) bool {
	return slices.ContainsFunc(maps, func(m specs.LinuxIDMapping) bool { return id >= m.HostID && id-m.HostID < m.Size })
}

const (
	overflow = 65534 // what the kernel shows for such an id
	lastID   = 1<<32 - 1
	// maxMappings and maxMapText are the kernel's: user_namespaces(7).
	maxMappings = 340
	maxMapText  = 4096
)

// Alike reports whether containers have the same ids in both. The ids of the guest may differ: a pod gets others on
// each node.
func (u *Users) Alike(o *Users) bool {
	if u == nil || o == nil {
		return u == nil && o == nil
	}
	same := func(a, b specs.LinuxIDMapping) bool { return a.ContainerID == b.ContainerID && a.Size == b.Size }
	return slices.EqualFunc(u.UIDs, o.UIDs, same) && slices.EqualFunc(u.GIDs, o.GIDs, same)
}

// Same reports whether both are the same mappings.
func (u *Users) Same(uids, gids []specs.LinuxIDMapping) bool {
	return u != nil && slices.Equal(u.UIDs, uids) && slices.Equal(u.GIDs, gids)
}

// Check refuses what the kernel refuses, and a namespace without root. The error names the field of config.json.
func (u *Users) Check() error {
	if u == nil {
		return nil
	}
	if err := checkMappings("linux.uidMappings", u.UIDs); err != nil {
		return err
	}
	return checkMappings("linux.gidMappings", u.GIDs)
}

func checkMappings(field string, maps []specs.LinuxIDMapping) error {
	wrong := func(text string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(text, args...), errdefs.ErrInvalidArgument)
	}
	if len(maps) == 0 {
		return wrong("it is empty, and there is a user namespace: map the container's ids from 0 on")
	}
	if len(maps) > maxMappings {
		return wrong("%d mappings, and the kernel takes %d: join some", len(maps), maxMappings)
	}
	text, root := 0, false
	for i, m := range maps {
		if m.Size == 0 || uint64(m.ContainerID)+uint64(m.Size) > lastID || uint64(m.HostID)+uint64(m.Size) > lastID {
			return wrong("%s has size 0, or ends after id %d: make it shorter", mapping(m), uint32(lastID-1))
		}
		text += len(fmt.Sprintf("%d %d %d\n", m.ContainerID, m.HostID, m.Size))
		root = root || m.ContainerID == 0
		for _, o := range maps[:i] {
			if overlap(m.ContainerID, o.ContainerID, m.Size, o.Size) || overlap(m.HostID, o.HostID, m.Size, o.Size) {
				return wrong("%s and %s overlap: give each id one mapping", mapping(o), mapping(m))
			}
		}
	}
	if text >= maxMapText {
		return wrong("%d mappings are %d bytes of text, and the kernel takes less than %d: join some", len(maps), text,
			maxMapText)
	}
	if !root {
		return wrong("container id 0 is not mapped: map it, because the container is made by its root")
	}
	return nil
}

// String lists the mappings, for errors.
func (u *Users) String() string {
	if u == nil {
		return "none"
	}
	text := ""
	for _, maps := range [][]specs.LinuxIDMapping{u.UIDs, u.GIDs} {
		for _, m := range maps {
			text += " " + mapping(m)
		}
	}
	return strings.TrimSpace(text)
}

func mapping(m specs.LinuxIDMapping) string {
	return fmt.Sprintf("%d:%d:%d", m.ContainerID, m.HostID, m.Size)
}

func overlap(a, b, sizeA, sizeB uint32) bool {
	return uint64(a) < uint64(b)+uint64(sizeB) && uint64(b) < uint64(a)+uint64(sizeA)
}
