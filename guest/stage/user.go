package stage

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// User is the user namespace of a container. A nil one is that of the guest.
type User struct {
	UIDs, GIDs []IDMapping
}

// IDMapping is a line of uid_map or gid_map, as in user_namespaces(7).
type IDMapping struct {
	Container, Guest, Size uint32
}

// UID answers the guest's id of a user of the container.
func (u *User) UID(id uint32) (guest uint32, mapped bool) {
	if u == nil {
		return id, true
	}
	return guestID(u.UIDs, id)
}

// GID answers the guest's id of a group of the container.
func (u *User) GID(id uint32) (guest uint32, mapped bool) {
	if u == nil {
		return id, true
	}
	return guestID(u.GIDs, id)
}

// owner answers the guest's ids of a user and a group. An id that is not mapped stays what it is: the container sees
// user 65534 in its place.
func (u *User) owner(uid, gid uint32) (int, int) {
	if mapped, ok := u.UID(uid); ok {
		uid = mapped
	}
	if mapped, ok := u.GID(gid); ok {
		gid = mapped
	}
	return int(uid), int(gid)
}

// CheckProcess refuses a process whose user or groups the container does not have.
func (u *User) CheckProcess(p *specs.Process) error {
	if _, ok := u.UID(p.User.UID); !ok {
		return invalid("process.user.uid", "linux.uidMappings have no id %d: map it, or name another user", p.User.UID)
	}
	for _, id := range append([]uint32{p.User.GID}, p.User.AdditionalGids...) {
		if _, ok := u.GID(id); !ok {
			return invalid("process.user", "linux.gidMappings have no id %d: map it, or name other groups", id)
		}
	}
	return nil
}

// Root answers the guest's ids of the container's root.
func (u *User) Root() (uid, gid int) { return u.owner(0, 0) }

func guestID(maps []IDMapping, id uint32) (uint32, bool) {
	for _, m := range maps {
		if id >= m.Container && id-m.Container < m.Size {
			return m.Guest + (id - m.Container), true
		}
	}
	return id, false
}

// ownedBy are the types whose options name an owner. The second one of each is the owner that it has by default.
var ownedBy = map[string][2]bool{"tmpfs": {true, true}, "devpts": {true, false}, "proc": {true, false}}

// options are those of a mount that the guest's root makes for the container: the ids in them are the container's.
func (u *User) options(target, kind string, data []string) ([]string, error) {
	owned := ownedBy[kind]
	if u == nil || !owned[0] {
		return data, nil
	}
	data = slices.Clone(data)
	have := map[string]bool{}
	for i, s := range data {
		name, text, _ := strings.Cut(s, "=")
		find := map[string]func(uint32) (uint32, bool){"uid": u.UID, "gid": u.GID}[name]
		if find == nil {
			continue
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, invalid("mount "+target, "option %q: %v", s, err)
		}
		guest, ok := find(uint32(id))
		if !ok {
			return nil, invalid("mount "+target, "option %q: linux.%sMappings have no such id: leave it out, or map it", s, name)
		}
		data[i], have[name] = fmt.Sprintf("%s=%d", name, guest), true
	}
	if owned[1] {
		uid, gid := u.Root()
		for name, id := range map[string]int{"uid": uid, "gid": gid} {
			if !have[name] {
				data = append(data, fmt.Sprintf("%s=%d", name, id))
			}
		}
	}
	return data, nil
}
