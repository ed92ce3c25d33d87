package node

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// unreadable are records of which one cannot be read.
type unreadable struct{ *records }

func (u unreadable) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	resp, err := u.records.List(ctx, req)
	resp.Unread = []string{"default/broken"}
	return resp, err
}

// A record that cannot be read costs its own snapshots. Those of others are listed, with a warning, and read. What is
// not among them may be that one's: it is not called absent. What deletes or pins is refused without the VM.
func TestSnapshotsWhereARecordCannotBeRead(t *testing.T) {
	web := &nodev1.Record{Vm: vm("web"), Uid: "u-web", Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:web",
		Repository: "r/web"}}}
	p := unreadable{&records{list: []*nodev1.Record{web}}}
	s, ctx := &Service{Config: &config.Config{Node: "n1"}, Records: p, Engine: &cleaner{}, Snapshot: &snapshots{}},
		t.Context()
	list, err := s.Snapshots(ctx, &nodev1.SnapshotsRequest{})
	if err != nil || len(list.GetSnapshots()) != 1 || !strings.Contains(list.GetWarning(), "default/broken") {
		t.Errorf("list: %v, %v", list, err)
	}
	for name, call := range map[string]func(digest string) error{
		"inspect": func(d string) error {
			_, err := s.Inspect(ctx, &nodev1.InspectRequest{Digest: d})
			return err
		},
		"verify": func(d string) error { _, err := s.Verify(ctx, &nodev1.VerifyRequest{Digest: d}); return err },
		"copy":   func(d string) error { _, err := s.Copy(ctx, &nodev1.CopyRequest{Digest: d, To: "x"}); return err },
		"diff": func(d string) error {
			_, err := s.Diff(ctx, &nodev1.DiffRequest{From: d, To: d})
			return err
		},
	} {
		if err := call("sha256:web"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := call("sha256:other"); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "default/broken") {
			t.Errorf("%s of what may be there: %v", name, err)
		}
	}
	if _, err := s.Drop(ctx, &nodev1.DropRequest{Digest: "sha256:web"}); !errdefs.IsDataLoss(err) {
		t.Errorf("rm: %v", err)
	}
}
