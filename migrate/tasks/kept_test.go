package tasks

import (
	"context"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	pkgnamespaces "github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
)

// disksOf are kept disks: RemoveOrphans asks for one.
type disksOf struct {
	disk KeptDisk
	gone []bool
}

func (d *disksOf) RemoveOrphans(absent func(KeptDisk) (bool, error)) error {
	gone, err := absent(d.disk)
	d.gone = append(d.gone, gone)
	return err
}

func (d *disksOf) Rootless() ([]KeptDisk, error) { return []KeptDisk{d.disk}, nil }

// spaces are the labels of containerd's namespaces.
type spaces struct {
	pkgnamespaces.Store
	labels map[string]map[string]string
	away   bool
}

func (s *spaces) Labels(_ context.Context, ns string) (map[string]string, error) {
	switch {
	case s.away:
		return nil, errdefs.ErrUnavailable
	case s.labels[ns] == nil:
		return nil, errdefs.ErrNotFound
	}
	return s.labels[ns], nil
}

func (s *spaces) SetLabel(_ context.Context, ns, key, value string) error {
	if s.away {
		return errdefs.ErrUnavailable
	}
	if s.labels == nil {
		s.labels = map[string]map[string]string{}
	}
	if s.labels[ns] == nil {
		s.labels[ns] = map[string]string{}
	}
	s.labels[ns][key] = value
	return nil
}

func keptClient(t *testing.T, k *kept, s *spaces) *Client {
	t.Helper()
	c, err := containerd.New("", containerd.WithServices(containerd.WithSandboxStore(new(shimSandboxes)),
		containerd.WithContainerStore(k),
		containerd.WithNamespaceService(s)))
	if err != nil {
		t.Fatal(err)
	}
	return &Client{containerd: c}
}

// The disk of a container goes if containerd says that the container is not there, and not if containerd says nothing.
func TestOrphanDisks(t *testing.T) {
	k := &kept{all: map[string]bool{"a/there": true}}
	c := keptClient(t, k, new(spaces))
	if err := c.RemoveOrphanDisks(t.Context()); err != nil {
		t.Error(err)
	}
	for id, want := range map[string]bool{"there": false, "gone": true} {
		d := &disksOf{disk: KeptDisk{VM: &nodev1.VM{Namespace: "a", Id: id}, Rooted: true}}
		c.Kept, k.away = d, false
		if err := c.RemoveOrphanDisks(t.Context()); err != nil || d.gone[0] != want {
			t.Errorf("%s: %v, %v", id, d.gone, err)
		}
		k.away = true
		if err := c.RemoveOrphanDisks(t.Context()); err == nil || d.gone[1] {
			t.Errorf("%s, without containerd: %v, %v", id, d.gone, err)
		}
	}
}

// A container without a root file system is gone only if the database that it was made in does not have it. doctor
// tells of those that another database cannot have.
func TestGoneOnlyFromTheSameDatabase(t *testing.T) {
	vm := &nodev1.VM{Namespace: "a", Id: "vm"}
	for name, tt := range map[string]struct {
		change               func(k *kept, s *spaces, d *KeptDisk)
		gone, fails, unknown bool
	}{
		"deleted": {func(*kept, *spaces, *KeptDisk) {},
			true, false, false},
		"there": {func(k *kept, _ *spaces, _ *KeptDisk) { k.all["a/vm"] = true },
			false, false, false},
		"a new database": {func(_ *kept, s *spaces, _ *KeptDisk) { s.labels = nil },
			false, false, true},
		"another containerd": {func(_ *kept, s *spaces, _ *KeptDisk) { s.labels["a"][labelDatabase] = "x" },
			false, false, true},
		"of an older build": {func(_ *kept, _ *spaces, d *KeptDisk) { d.Container = "" },
			false, false, true},
		"neither has an identity": {func(_ *kept, s *spaces, d *KeptDisk) { d.Container, s.labels = "", nil },
			false, false, true},
		"labels are not read": {func(_ *kept, s *spaces, _ *KeptDisk) { s.away = true },
			false, true, true},
		"nothing is read": {func(k *kept, _ *spaces, _ *KeptDisk) { k.away = true },
			false, true, true},
	} {
		k, s := &kept{all: map[string]bool{}}, new(spaces)
		c := keptClient(t, k, s)
		own, err := c.newIdentity(t.Context(), vm)
		if err != nil {
			t.Fatal(err)
		}
		d := &disksOf{disk: KeptDisk{VM: vm, Container: own}}
		c.Kept = d
		tt.change(k, s, &d.disk)
		if err := c.RemoveOrphanDisks(t.Context()); (err != nil) != tt.fails || d.gone[0] != tt.gone {
			t.Errorf("%s: gone %v, %v", name, d.gone, err)
		}
		_, err = c.KeptFinding(t.Context())
		if (err != nil) != tt.unknown || tt.unknown && !tt.fails && !strings.Contains(err.Error(), "a/vm") {
			t.Errorf("%s: doctor says %v", name, err)
		}
	}
}

// Two containers of one name have one database and two identities. A container that has one keeps it.
func TestIdentityOfAContainer(t *testing.T) {
	vm := &nodev1.VM{Namespace: "a", Id: "vm"}
	s := new(spaces)
	c := keptClient(t, new(kept), s)
	one, err := c.newIdentity(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	two, err := c.newIdentity(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	database, _, _ := strings.Cut(one, "/")
	if one == two || database == "" || !strings.HasPrefix(two, database+"/") {
		t.Errorf("%q and %q", one, two)
	}
	s.away = true
	if own, err := c.newIdentity(t.Context(), vm); err == nil {
		t.Errorf("without containerd: %q", own)
	}
	made := new(specs.Spec)
	identify(made, one)
	if identify(made, two); made.Annotations[spec.AnnotationContainer] != one {
		t.Errorf("it has %v", made.Annotations)
	}
}
