package node

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// pinned are records that note of which VM a snapshot is pinned.
type pinned struct {
	*records
	of []string
}

func (p *pinned) Pin(_ context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
	p.of = append(p.of, key(req.GetVm())+" "+req.GetUid())
	return &nodev1.Record{Vm: req.GetVm()}, nil
}

// A node can have any digest listed in the record of its own VM. An order of a person about a snapshot goes to no
// record of two by itself: it is refused, and the error names the VMs and what says which one is meant.
func TestSnapshotThatTwoRecordsList(t *testing.T) {
	list := func(id, repository string) *nodev1.Record {
		return &nodev1.Record{Vm: vm(id), Uid: "u-" + id, Snapshots: []*nodev1.SnapshotRef{
			{Digest: "sha256:1", Repository: repository}, {Digest: "sha256:" + id, Repository: repository}}}
	}
	p := &pinned{records: &records{list: []*nodev1.Record{list("aaa", "r/hostile"), list("web", "r/web")}}}
	shots, ctx := &snapshots{}, t.Context()
	s := &Service{Config: &config.Config{Node: "n1"}, Records: p, Engine: &cleaner{}, Snapshot: shots}
	calls := map[string]func(digest string) error{
		"pin": func(d string) error { _, err := s.Pin(ctx, &nodev1.PinRequest{Digest: d}); return err },
		"rm":  func(d string) error { _, err := s.Drop(ctx, &nodev1.DropRequest{Digest: d}); return err },
		"inspect": func(d string) error {
			_, err := s.Inspect(ctx, &nodev1.InspectRequest{Digest: d})
			return err
		},
		"verify": func(d string) error { _, err := s.Verify(ctx, &nodev1.VerifyRequest{Digest: d}); return err },
		"diff": func(d string) error {
			_, err := s.Diff(ctx, &nodev1.DiffRequest{From: "sha256:web", To: d})
			return err
		},
		"copy": func(d string) error { _, err := s.Copy(ctx, &nodev1.CopyRequest{Digest: d, To: "x"}); return err },
	}
	for name, call := range calls {
		remedy := "--repository"
		if name == "pin" || name == "rm" {
			remedy = "--vm"
		}
		err := call("sha256:1")
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "default/aaa") ||
			!strings.Contains(err.Error(), "default/web") || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(p.of) > 0 || len(p.trimmed) > 0 || len(shots.verified) > 0 || shots.diffed != nil {
		t.Errorf("pinned %v, trimmed %v, verified %v, compared %v", p.of, p.trimmed, shots.verified, shots.diffed)
	}
	for name, call := range calls {
		if err := call("sha256:web"); err != nil {
			t.Errorf("%s of what one record lists: %v", name, err)
		}
	}
	if _, err := s.Pin(ctx, &nodev1.PinRequest{Vm: vm("web"), Digest: "sha256:1"}); err != nil {
		t.Errorf("pin with the VM: %v", err)
	}
	if _, err := s.Drop(ctx, &nodev1.DropRequest{Vm: vm("web"), Digest: "sha256:1"}); err != nil {
		t.Errorf("rm with the VM: %v", err)
	}
	if _, err := s.Drop(ctx, &nodev1.DropRequest{Vm: vm("web"), Digest: "sha256:aaa"}); !errdefs.IsNotFound(err) {
		t.Errorf("rm with a VM that has another one: %v", err)
	}
	if want := []string{"default/web sha256:web", "default/web sha256:1"}; !slices.Equal(p.trimmed, want) {
		t.Errorf("trimmed %v, want %v", p.trimmed, want)
	}
	if want := []string{"default/web u-web", "default/web "}; !slices.Equal(p.of, want) {
		t.Errorf("pinned %v, want %v", p.of, want)
	}
}
