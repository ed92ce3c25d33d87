package registry

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ageing is a node with a layout, and the time since all of its files were written.
func ageing(t *testing.T) (r *Registry, root string, age func(time.Duration)) {
	t.Helper()
	root = t.TempDir()
	cfg := config.Default()
	cfg.Registry.Layout, cfg.StateDir = root, t.TempDir()
	return New(cfg), root, func(d time.Duration) {
		past := time.Now().Add(-d)
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chtimes(path, past, past)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tagged puts a hold and its blobs into a repository.
func tagged(t *testing.T, r *Registry, repository string) (dgst, tag string) {
	t.Helper()
	st, err := r.Open(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	ref := snapshot.Ref{VM: "default/web", UID: "u", Operation: "op", Attempt: 1, Generation: 2}
	if err := snapshot.NewHold(st, ref).Keep(t.Context(), []v1.Descriptor{v1.DescriptorEmptyJSON}); err != nil {
		t.Fatal(err)
	}
	info, err := st.Stat(t.Context(), store.Manifest(ref.HoldTag()))
	if err != nil {
		t.Fatal(err)
	}
	return info.Digest.String(), ref.HoldTag()
}

// A VM that was removed leaves nothing in a layout once its snapshots were deleted and the grace
// time is over. What has a tag or a record stays, and so does a directory with another program's
// name. Of golden snapshots, what is listed stays.
func TestAbandonedLayouts(t *testing.T) {
	t.Run("VM", func(t *testing.T) { testAbandonedLayouts(t, "") })
	t.Run("member of a set", func(t *testing.T) { testAbandonedLayouts(t, ".main") })
}

func testAbandonedLayouts(t *testing.T, member string) {
	r, root, age := ageing(t)
	removed, asleep, owned := uuid.NewString()+member, uuid.NewString()+member, uuid.NewString()+member
	for _, name := range []string{removed, asleep, owned, "golden", "else"} {
		repository := store.LayoutPrefix + filepath.Join(root, name)
		d, tag := tagged(t, r, repository)
		if name == asleep {
			continue
		}
		if err := r.Drop(t.Context(), repository, d, tag, "u"); err != nil {
			t.Fatal(err)
		}
	}
	blobs := func(name string) int {
		files, err := filepath.Glob(filepath.Join(root, name, "blobs/sha256/*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	known := func(uid string) bool { return uid == owned }
	tend := func(freed int, dry bool) {
		t.Helper()
		if all, err := r.Abandoned(t.Context(), known, time.Minute, dry); err != nil || len(all) != freed {
			t.Fatalf("freed %+v, %v", all, err)
		}
	}
	tend(0, false) // it may be of a push under way
	age(10 * time.Minute)
	tend(1, true)
	if blobs(removed) != 2 {
		t.Error("a dry one removes files")
	}
	tend(1, false)
	if _, err := os.Stat(filepath.Join(root, removed)); !os.IsNotExist(err) {
		t.Errorf("the repository of a VM that was removed: %v", err)
	}
	if blobs("golden") != 2 {
		t.Error("what a golden snapshot may be made of is gone")
	}
	age(2 * time.Hour)
	tend(1, false)
	tend(0, false)
	for name, want := range map[string]int{asleep: 2, owned: 2, "else": 2, "golden": 0} {
		if got := blobs(name); got != want {
			t.Errorf("%s has %d files, want %d", name, got, want)
		}
	}
}

// A directory of layouts may be each node's own: that a snapshot is not there clears no pending deletion but that
// of who made it. What is there anybody deletes.
func TestLayoutOfAnotherNode(t *testing.T) {
	r, _, _ := ageing(t)
	r.Config.Node = "b"
	repository := r.Repository(&nodev1.Record{Uid: uuid.NewString()})
	there, _ := tagged(t, r, repository)
	absent := digest.FromString("another").String()
	for _, c := range []struct {
		node, digest, repository string
		want                     bool
	}{
		{"b", there, repository, true}, {"b", absent, repository, true}, {"", absent, repository, true},
		{"a", there, repository, true}, {"a", absent, repository, false},
		{"a", absent, r.Repository(&nodev1.Record{Uid: uuid.NewString()}), false},
		{"a", absent, "registry.example/vms/u", true},
	} {
		got, err := r.Reaches(t.Context(), &nodev1.SnapshotRef{Repository: c.repository, Digest: c.digest, Node: c.node})
		if err != nil || got != c.want {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
}
