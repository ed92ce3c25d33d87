package spec

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// An id that is not mapped is user 65534 in the container, whatever ids the guest has for it.
func TestOwner(t *testing.T) {
	u := &Users{UIDs: []specs.LinuxIDMapping{{HostID: 1000, Size: 10}, {ContainerID: 10, HostID: 65534, Size: 3}},
		GIDs: []specs.LinuxIDMapping{{HostID: 5, Size: 1}}}
	for _, tt := range [][4]uint32{{0, 0, 1000, 5}, {9, 1, 1009, 65534}, {10, 0, 65534, 5}, {13, 0, 65537, 5},
		{1<<32 - 1, 0, 65537, 5}} {
		if uid, gid := u.Owner(tt[0], tt[1]); uid != tt[2] || gid != tt[3] {
			t.Errorf("%d:%d is %d:%d, want %d:%d", tt[0], tt[1], uid, gid, tt[2], tt[3])
		}
	}
	if uid, gid := (*Users)(nil).Owner(7, 8); uid != 7 || gid != 8 {
		t.Errorf("without a user namespace: %d:%d", uid, gid)
	}
}

func TestAlike(t *testing.T) {
	of := func(host, size uint32) *Users {
		m := []specs.LinuxIDMapping{{HostID: host, Size: size}}
		return &Users{UIDs: m, GIDs: m}
	}
	for _, tt := range []struct {
		a, b *Users
		want bool
	}{
		{nil, nil, true}, {nil, of(1, 2), false}, {of(1, 2), nil, false},
		{of(1, 2), of(3, 2), true}, {of(1, 2), of(1, 3), false},
	} {
		if got := tt.a.Alike(tt.b); got != tt.want {
			t.Errorf("%v and %v: %v", tt.a, tt.b, got)
		}
	}
}

// A snapshot may come from anywhere.
func TestCheckUsers(t *testing.T) {
	s := good()
	pod(s)
	s.Pod.Users = &Users{}
	if err := s.Check(); err == nil {
		t.Error("a pod with a user namespace without ids")
	}
}
