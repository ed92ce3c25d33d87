package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/spec"
)

// checkUsers refuses mappings that no user namespace can have, or that have none.
func checkUsers(oci *specs.Spec) error {
	if users := spec.UsersOf(oci); users != nil {
		return users.Check()
	}
	l := oci.Linux
	for field, maps := range map[string][]specs.LinuxIDMapping{"linux.uidMappings": l.UIDMappings,
		"linux.gidMappings": l.GIDMappings} {
		if len(maps) > 0 {
			return invalid(field, "linux.namespaces has no user namespace for it: add one, or leave the mappings out")
		}
	}
	return nil
}

// mapped reports whether the owners of what a mount shows are ids of the container.
func mapped(m specs.Mount) bool {
	return len(m.UIDMappings)+len(m.GIDMappings) > 0 || slices.ContainsFunc(m.Options, isMapping)
}

func isMapping(option string) bool { return option == "idmap" || option == "ridmap" }

// takeMapping takes the mapping out of a mount.
func takeMapping(m specs.Mount, users *spec.Users) (specs.Mount, bool, error) {
	if !mapped(m) {
		return m, false, nil
	}
	field := "mount " + m.Destination
	switch {
	case users == nil:
		return m, false, refused(field, "uidMappings, gidMappings, idmap and ridmap are for a container with a user "+
			"namespace: give it one, or leave them out")
	case !isBind(m):
		return m, false, refused(field, "uidMappings, gidMappings, idmap and ridmap are for bind mounts: leave them out of "+
			"a "+m.Type)
	case len(m.UIDMappings)+len(m.GIDMappings) > 0 && !users.Same(m.UIDMappings, m.GIDMappings):
		return m, false, refused(field, "its uidMappings or gidMappings are not those of linux: make them equal")
	}
	m.UIDMappings, m.GIDMappings = nil, nil
	m.Options = slices.DeleteFunc(slices.Clone(m.Options), isMapping)
	return m, true, nil
}

// MapLayers notes whether the guest has to map the ids of the image's files. containerd asks for that by options of the
// mounts. Without them it has done so itself.
func (b *Bundle) MapLayers(mounts []*types.Mount) error {
	c := b.container()
	if c == nil || len(mounts) == 0 {
		return nil
	}
	last := mounts[len(mounts)-1]
	want := map[string]string{}
	for _, o := range last.Options {
		if key, text, _ := strings.Cut(o, "="); key == "uidmap" || key == "gidmap" {
			want[key] = text
		}
	}
	users := c.Users()
	own := last.Type != "overlay" && slices.Contains(last.Options, "rw") // a directory of this container alone
	if len(want) == 0 || own {
		return nil
	}
	if users == nil || want["uidmap"] != mapText(users.UIDs) || want["gidmap"] != mapText(users.GIDs) {
		return fmt.Errorf("root file system: its mount has uidmap=%s and gidmap=%s, which are not linux.uidMappings and "+
			"linux.gidMappings: make them equal: %w", want["uidmap"], want["gidmap"], errdefs.ErrInvalidArgument)
	}
	c.MapLayers = true
	return nil
}

// mapText is how containerd writes mappings.
func mapText(maps []specs.LinuxIDMapping) string {
	var all []string
	for _, m := range maps {
		all = append(all, fmt.Sprintf("%d:%d:%d", m.ContainerID, m.HostID, m.Size))
	}
	return strings.Join(all, ",")
}

// OwnedIn makes the owners of copied files those of a VM's user namespace.
func (b *Bundle) OwnedIn(users *spec.Users) {
	for i := range b.Copies {
		b.Copies[i].users = users
	}
	if b.Member != nil {
		b.Member.Termination.users = users
	}
}

// owner answers the guest's ids of a file's owner. Of a mount without a mapping they are the host's, as with runc.
func (c Copy) owner(uid, gid uint32) (uint32, uint32) {
	if !c.Mapped {
		return uid, gid
	}
	return c.users.Owner(uid, gid)
}

// RootOf answers the host's ids of the root of a bundle's container: 0 without a user namespace.
func RootOf(dir string) (uid, gid uint32, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, os.ErrNotExist) { // Load says what is wrong
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read bundle: %w", err)
	}
	oci := new(specs.Spec)
	if err := json.Unmarshal(data, oci); err != nil {
		return 0, 0, fmt.Errorf("read bundle: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	users := spec.UsersOf(oci)
	if users == nil || users.Check() != nil {
		return 0, 0, nil
	}
	uid, gid = users.Owner(0, 0)
	return uid, gid, nil
}

// guestUsers is what the guest's agent is told.
func guestUsers(users *spec.Users) *agentv1.UserNamespace {
	if users == nil {
		return nil
	}
	return &agentv1.UserNamespace{Uids: guestMappings(users.UIDs), Gids: guestMappings(users.GIDs)}
}

func guestMappings(maps []specs.LinuxIDMapping) (all []*agentv1.IDMapping) {
	for _, m := range maps {
		all = append(all, &agentv1.IDMapping{Container: m.ContainerID, Guest: m.HostID, Size: m.Size})
	}
	return all
}

// Owned gives files of a volume the owners that the containers of a pod know them by.
func Owned(files []*agentv1.File, users *spec.Users) {
	for _, f := range files {
		f.Uid, f.Gid = users.Owner(f.Uid, f.Gid)
	}
}
