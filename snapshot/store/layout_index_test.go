package store_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot/store"
)

// A directory whose index.json has gone says so, whatever is asked of it: it is no empty one, and none of its blobs is
// collected.
func TestIndexThatHasGone(t *testing.T) {
	dir := t.TempDir()
	l, err := store.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("a blob")
	d := digest.FromBytes(data)
	if err := l.Put(t.Context(), store.Blob(d), store.Bytes(data, d)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "index.json")); err != nil {
		t.Errorf("with its first blob: %v", err)
	}
	blobs := filepath.Join(dir, "blobs", "sha256")
	before, err := os.ReadDir(blobs)
	if err != nil || len(before) != 1 {
		t.Fatalf("%v, %v", before, err)
	}
	if err := os.Remove(filepath.Join(dir, "index.json")); err != nil {
		t.Fatal(err)
	}
	for what, ask := range map[string]func(context.Context) error{
		"collect": func(ctx context.Context) error { _, err := l.Collect(ctx, 0, false); return err },
		"tags":    func(ctx context.Context) error { _, err := l.Tags(ctx); return err },
		"delete":  func(ctx context.Context) error { return l.Delete(ctx, "tag") },
	} {
		if err := ask(t.Context()); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after, err := os.ReadDir(blobs); err != nil || len(after) != 1 {
		t.Errorf("left are %v, %v", after, err)
	}
}
