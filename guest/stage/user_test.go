package stage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var few = &User{UIDs: []IDMapping{{0, 1000, 10}, {20, 5000, 1}}, GIDs: []IDMapping{{0, 2000, 6}}}

// The guest's root makes the container's mounts, whose options have ids of the container.
func TestMountOptionsOfUser(t *testing.T) {
	for _, tt := range []struct {
		kind  string
		given []string
		want  string
	}{
		{"tmpfs", []string{"size=1m"}, "[gid=2000 size=1m uid=1000]"},
		{"tmpfs", []string{"uid=20", "mode=755"}, "[gid=2000 mode=755 uid=5000]"},
		{"devpts", []string{"newinstance", "gid=5"}, "[gid=2005 newinstance]"},
		{"proc", []string{"hidepid=2", "gid=1"}, "[gid=2001 hidepid=2]"},
		{"sysfs", nil, "[]"},
	} {
		got, err := few.options("/m", tt.kind, tt.given)
		slices.Sort(got)
		if err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s %v: %v, %v; want %s", tt.kind, tt.given, got, err, tt.want)
		}
	}
	for _, option := range []string{"gid=6", "uid=10", "uid=x", "uid=-1"} {
		if _, err := few.options("/m", "tmpfs", []string{option}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", option, err)
		}
	}
	if got, err := (*User)(nil).options("/m", "tmpfs", []string{"uid=7"}); err != nil || fmt.Sprint(got) != "[uid=7]" {
		t.Errorf("without a user namespace: %v, %v", got, err)
	}
}

func TestCheckProcessOfUser(t *testing.T) {
	for want, user := range map[string]specs.User{
		"":                  {UID: 20, GID: 5, AdditionalGids: []uint32{0}},
		"process.user.uid":  {UID: 10},
		"linux.gidMappings": {GID: 6}, "no id 7": {AdditionalGids: []uint32{1, 7}},
	} {
		err := few.CheckProcess(&specs.Process{User: user})
		said := strings.Contains(fmt.Sprint(err), want) && errdefs.IsInvalidArgument(err)
		if want == "" && err != nil || want != "" && !said {
			t.Errorf("%+v: %v", user, err)
		}
	}
	if err := (*User)(nil).CheckProcess(&specs.Process{User: specs.User{UID: 1 << 31}}); err != nil {
		t.Error(err)
	}
}
