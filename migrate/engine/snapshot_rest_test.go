package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// oneDeletion is a list of deletions of one, and a list of records that may be empty.
type oneDeletion struct {
	nodev1.RecordsService
	deletion      *nodev1.Owed
	gone, cleared bool
}

func (d *oneDeletion) Owed(context.Context, *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	return &nodev1.OwedResponse{Owed: []*nodev1.Owed{d.deletion}}, nil
}

func (d *oneDeletion) List(ctx context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	if d.gone {
		return &nodev1.ListResponse{}, nil
	}
	return d.RecordsService.List(ctx, req)
}

func (d *oneDeletion) Clear(context.Context, *nodev1.ClearRequest) (*nodev1.ClearResponse, error) {
	d.cleared = true
	return &nodev1.ClearResponse{}, nil
}

// A VM that is removed from a store which was put back leaves nothing in its repository: what the copy
// did not know goes as well, and nothing of another VM. A store that fails, or records that do not
// count, leave the deletion as it is.
func TestRestIsDeleted(t *testing.T) {
	w := asleep(t)
	e := w.start("n1")
	e.opts.Retention = Retention{Keep: 1, Grace: time.Hour}
	uid := w.record().GetUid()
	w.tags = []Leftover{
		{Tag: "known", Digest: "sha256:1", UID: uid, Generation: 1},
		{Tag: "since", Digest: "sha256:2", UID: uid, Generation: 9},
		{Tag: "hold", Digest: "sha256:3", UID: uid, Generation: 9, Hold: true},
		{Tag: "foreign", Digest: "sha256:f", UID: "other"},
	}
	deletion := &nodev1.Owed{Vm: vm, Uid: uid, Payer: "n1", Snapshot: &nodev1.SnapshotRef{Repository: "r/" + uid,
		Digest: record.RestOf(uid, "")}}
	deleting := &oneDeletion{RecordsService: e.Records, deletion: deletion}
	e.Records = deleting
	clean := func() error { return e.Clean(t.Context(), vm) }
	if err := clean(); !errdefs.IsFailedPrecondition(err) || len(w.dropped) > 0 || deleting.cleared {
		t.Fatalf("while a record is of that uid: %v, dropped %v", err, w.dropped)
	}
	deleting.gone = true
	w.broke("Leftovers", errdefs.ErrUnavailable)
	if err := clean(); !errdefs.IsUnavailable(err) || len(w.dropped) > 0 || deleting.cleared {
		t.Fatalf("a store that lists nothing: %v, dropped %v, cleared %v", err, w.dropped, deleting.cleared)
	}
	w.broke("Leftovers", nil)
	e.Store = &believed{err: errdefs.ErrUnavailable}
	if err := clean(); !errdefs.IsUnavailable(err) || len(w.dropped) > 0 || deleting.cleared {
		t.Fatalf("records that do not count: %v, dropped %v, cleared %v", err, w.dropped, deleting.cleared)
	}
	e.Store = nil
	w.broke("Drop", errdefs.ErrPermissionDenied)
	if err := clean(); !errdefs.IsPermissionDenied(err) || deleting.cleared {
		t.Fatalf("a store that refuses: %v, cleared %v", err, deleting.cleared)
	}
	w.broke("Drop", nil)
	if err := clean(); err != nil || !deleting.cleared {
		t.Fatalf("%v, cleared %v", err, deleting.cleared)
	}
	slices.Sort(w.dropped)
	if diff := cmp.Diff([]string{"hold", "known", "since"}, w.dropped); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
}
