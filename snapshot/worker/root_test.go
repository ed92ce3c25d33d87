package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot/store"
)

// Node a has stored nothing below another prefix, and has read there what node b stored. Where that directory is not
// mounted any more, node a stores nothing below its mount point.
func TestPushAfterARead(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	at := func() store.Config {
		node := config.Default()
		node.StateDir, node.Registry.Layout = t.TempDir(), filepath.Join(t.TempDir(), "own")
		return store.ConfigOf(node, store.LayoutPrefix+filepath.Join(root, "9b2f4f52-97c3-4dd3-8a3e-7b1f3b1f0a11.web"))
	}
	a, b := at(), at()
	job := pushJob(t, b)
	r, err := client().Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client().Open(t.Context(), OpenJob{Store: a, Keys: job.Keys, Digest: r.Digest}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root, root+".away"); err != nil {
		t.Fatal(err)
	}
	job = pushJob(t, a)
	if _, err := client().Push(t.Context(), job, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("push below a directory that is not mounted: %v", err)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("something was made there: %v", err)
	}
}

// Where the directory of snapshots is not mounted any more, a push with a parent there stores nothing below its mount
// point.
func TestPushBelowMountPoint(t *testing.T) {
	node := config.Default()
	root := filepath.Join(t.TempDir(), "root")
	node.StateDir, node.Registry.Layout = t.TempDir(), root
	cfg := store.ConfigOf(node, store.LayoutPrefix+filepath.Join(root, "uid1"))
	job := pushJob(t, cfg)
	job.Next = file(t, nil)
	if _, err := client().Push(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root, root+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	job.Ref.Operation, job.Table, job.Next = "op2", job.Next, file(t, nil)
	if _, err := client().Push(t.Context(), job, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("push below a directory that is not mounted: %v", err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("below the mount point: %v, %v", left, err)
	}
}
