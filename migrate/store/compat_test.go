package store_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// old unpacks the store that the first build wrote, before stores had a version.
func old(t *testing.T) string {
	t.Helper()
	f, err := os.Open("testdata/records-v1.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "records.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Records and operations of the first build are read whole, and go on: every field that
// it set is there, nothing is unknown, and a change applies to the version it had.
func TestStoreOfVersion1(t *testing.T) {
	path := old(t)
	for range 2 { // also after this build has written its version
		st, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		all, err := st.List(t.Context(), "", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, rec := range all {
			if n := len(rec.ProtoReflect().GetUnknown()); n > 0 {
				t.Errorf("record %s: %d bytes of unknown fields", rec.GetVm().GetId(), n)
			}
			got = append(got, rec.GetVm().GetId()+" "+rec.GetUid()+" "+rec.GetOwner().GetNode()+rec.GetOwner().
				GetDigest()[:min(10, len(rec.GetOwner().GetDigest()))]+" "+rec.GetOperation().GetPhase().String())
		}
		want := []string{
			"runs uid-runs a PHASE_UNSPECIFIED", "sleeps uid-sleeps sha256:e3b PHASE_UNSPECIFIED",
			"wakes uid-wakes sha256:e3b PHASE_TRANSFERRING",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("records (-want +got):\n%s", d)
		}
		op, err := st.Operation(t.Context(), "op-hibernate")
		if err != nil || op.GetKind() != nodev1.Kind_KIND_HIBERNATE || op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED ||
			op.GetReceipt() == "" {
			t.Errorf("closed operation: %v, %v", op, err)
		}
		sleeps := all[1]
		if refs := sleeps.GetSnapshots(); len(refs) != 1 || refs[0].GetTag() != "g3" || refs[0].GetBytes() != 123456 ||
			len(sleeps.GetSpent()) != 1 {
			t.Errorf("snapshots %v, spent %v", refs, sleeps.GetSpent())
		}
		next := proto.CloneOf(sleeps)
		next.Generation++
		if _, err := st.Apply(t.Context(), next.GetVm(), sleeps.GetVersion(), transition.Change{Record: next}); err != nil {
			t.Errorf("change a record of version 1: %v", err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A store of a later version is refused as such, and no byte of it changes.
func TestStoreOfALaterVersion(t *testing.T) {
	path := old(t)
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket([]byte("meta"))
		if err != nil {
			return err
		}
		return meta.Put([]byte("version"), []byte("99"))
	})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := store.Open(path); !errdefs.IsNotImplemented(err) {
		if err == nil {
			_ = st.Close()
		}
		t.Errorf("open a store of version 99: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the refused store was changed, or is gone: %v", err)
	}
}
