package bundle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

var ids = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}

// withUsers is a user namespace that maps ids.
func withUsers(path string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
		s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
		return nil
	}
}

func mappedMount(source string, change func(*specs.Mount)) oci.SpecOpts {
	m := specs.Mount{Type: "bind", Source: source, Destination: "/m", Options: []string{"rbind", "ro"}, UIDMappings: ids,
		GIDMappings: ids}
	if change != nil {
		change(&m)
	}
	return oci.WithMounts([]specs.Mount{m})
}

// The guest is told of the user namespace, of the layers that it has to map, and of files with owners as it has them.
func TestUserNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := load(t, generate(t, oci.Compose(withUsers(""), mappedMount(file, nil),
		oci.WithMounts([]specs.Mount{{Type: "bind", Source: file, Destination: "/plain", Options: []string{"ro"}}}))))
	if err != nil {
		t.Fatal(err)
	}
	overlay := &types.Mount{Type: "overlay", Options: []string{"uidmap=0:100000:65536", "gidmap=0:100000:65536"}}
	if err := b.MapLayers([]*types.Mount{overlay}); err != nil {
		t.Fatal(err)
	}
	r, err := Setup(b.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if u := r.User; !r.MapLayers || len(u.GetUids()) != 1 || u.Gids[0].Guest != 100000 || u.Gids[0].Size != 65536 {
		t.Errorf("the guest is asked for %v, layers mapped: %v", r.User, r.MapLayers)
	}
	owners := map[string]uint32{}
	for files, err := range b.Copies.Requests(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files.Files {
			owners[f.Path] = f.Uid
		}
	}
	if owners["/m"] != 100000+uint32(os.Getuid()) || owners["/plain"] != uint32(os.Getuid()) {
		t.Errorf("owners: %v", owners)
	}
	b.OwnedIn(&spec.Users{UIDs: []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}})
	for files := range b.Copies.Select("/m").Requests(t.Context()) {
		if uid := files.Files[0].Uid; uid != 200000+uint32(os.Getuid()) {
			t.Errorf("the VM comes from a node with other ids: owner %d", uid)
		}
	}
}

func TestUserNamespaceRefused(t *testing.T) {
	maps := func(m ...specs.LinuxIDMapping) oci.SpecOpts { return oci.WithUserNamespace(m, ids) }
	many := make([]specs.LinuxIDMapping, 341)
	for i := range many {
		many[i] = specs.LinuxIDMapping{ContainerID: uint32(i), HostID: uint32(1000 + i), Size: 1}
	}
	long := slices.Clone(many[:340])
	for i := range long {
		long[i].HostID += 4_000_000_000
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mount := func(change func(*specs.Mount)) oci.SpecOpts {
		return oci.Compose(withUsers(""), mappedMount(file, change))
	}
	bad, not := errdefs.IsInvalidArgument, errdefs.IsNotImplemented
	for name, tt := range map[string]struct {
		opt  oci.SpecOpts
		is   func(error) bool
		want []string
	}{
		"no users":     {maps(), bad, []string{"linux.uidMappings", "from 0 on"}},
		"no root":      {maps(specs.LinuxIDMapping{ContainerID: 1, Size: 9}), bad, []string{"id 0", "map it"}},
		"of size 0":    {maps(specs.LinuxIDMapping{}), bad, []string{"size 0"}},
		"past the end": {maps(specs.LinuxIDMapping{HostID: 1 << 31, Size: 1 << 31}), bad, []string{"shorter"}},
		"two of one id": {maps(ids[0], specs.LinuxIDMapping{ContainerID: 65535, HostID: 1, Size: 2}), bad,
			[]string{"0:100000:65536 and 65535:1:2 overlap"}},
		"two of one id of the host": {maps(ids[0], specs.LinuxIDMapping{ContainerID: 70000, HostID: 165535, Size: 1}),
			bad, []string{"overlap", "give each id one mapping"}},
		"too many": {maps(many...), bad, []string{"341 mappings", "join some"}},
		"too long": {maps(long...), bad, []string{"bytes of text", "join some"}},
		"path":     {withUsers("/proc/1/ns/user"), not, []string{"linux.namespaces user", "leave the path out"}},
		"mappings alone": {func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
			s.Linux.GIDMappings = ids
			return nil
		}, bad, []string{"linux.gidMappings", "add one"}},
		"mount without a user namespace": {mappedMount(file, nil), not, []string{"mount /m", "give it one"}},
		"mount with other ids": {mount(func(m *specs.Mount) { m.GIDMappings = many[:1] }), not,
			[]string{"mount /m", "make them equal"}},
		"mapped tmpfs": {mount(func(m *specs.Mount) { m.Type, m.Options = "tmpfs", nil }), not,
			[]string{"mount /m", "leave them out of a tmpfs"}},
		"idmap without a user namespace": {mappedMount(file, func(m *specs.Mount) {
			m.UIDMappings, m.GIDMappings, m.Options = nil, nil, []string{"bind", "ro", "idmap"}
		}), not, []string{"mount /m", "idmap"}},
	} {
		_, err := load(t, generate(t, tt.opt))
		if !tt.is(err) || slices.ContainsFunc(tt.want, func(w string) bool { return !strings.Contains(fmt.Sprint(err), w) }) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A root file system whose files have other ids than the container's is refused.
func TestMapLayers(t *testing.T) {
	mount := func(kind string, options ...string) []*types.Mount {
		return []*types.Mount{{Type: kind, Options: options}}
	}
	u, g := "uidmap=0:100000:65536", "gidmap=0:100000:65536"
	for name, tt := range map[string]struct {
		mounts []*types.Mount
		mapped bool
		err    bool
	}{
		"by containerd":       {mount("overlay"), false, false},
		"by the guest":        {mount("overlay", u, g), true, false},
		"other ids":           {mount("overlay", "uidmap=0:1:65536", g), false, true},
		"users alone":         {mount("overlay", u), false, true},
		"directory":           {mount("bind", u, g, "rw", "rbind"), false, false},
		"view of a directory": {mount("bind", u, g, "ro", "rbind"), true, false},
		"none":                {nil, false, false},
	} {
		b, err := load(t, generate(t, withUsers("")))
		if err != nil {
			t.Fatal(err)
		}
		err = b.MapLayers(tt.mounts)
		mapped := b.Spec.Container.MapLayers
		if mapped != tt.mapped || (err != nil) != tt.err || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: mapped %v, %v", name, mapped, err)
		}
	}
	b, err := load(t, generate(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.MapLayers(mount("overlay", u, g)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without a user namespace: %v", err)
	}
}

// Containers of a pod have the ids of their pod, also if the node of today would map them otherwise.
func TestUsersOfPod(t *testing.T) {
	pod, err := load(t, sandbox(t, withUsers("/run/netns/pinned")))
	if err != nil {
		t.Fatal(err)
	}
	of := func(opts oci.SpecOpts) *Bundle {
		b, err := load(t, member(t, opts))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	vm := pod.Spec
	if vm.Pod.Users == nil || pod.Spec.Check() != nil {
		t.Fatalf("the pod has users %v, %v", vm.Pod.Users, pod.Spec.Check())
	}
	vm.Pod.Users.UIDs[0].HostID = 300000
	b := of(withUsers("/proc/4711/ns/user"))
	if err := b.BelongsTo(vm, b.Member.Sandbox); err != nil {
		t.Error(err)
	}
	if r, err := MemberSetup(vm, &b.Member.Container); err != nil || r.User.Uids[0].Guest != 300000 {
		t.Errorf("%v, %v", r, err)
	}
	b = of(func(context.Context, oci.Client, *containers.Container, *specs.Spec) error { return nil })
	if err := b.BelongsTo(vm, b.Member.Sandbox); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), "linux.uidMappings") {
		t.Errorf("a container without a user namespace: %v", err)
	}
}
