package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Retire is Collect of a repository that no VM will push to any more. While index.json lists a
// manifest nothing is touched: it may be somebody else's. With the last blob the directory goes.
func (l *Layout) Retire(ctx context.Context, grace time.Duration, dry bool) (Collected, error) {
	index, err := l.index()
	if err != nil || len(index.Manifests) > 0 {
		return Collected{}, err
	}
	c, err := l.Collect(ctx, grace, dry)
	if err != nil || dry {
		return c, err
	}
	return c, fileError("remove", Manifest("*"), l.leave())
}

// leave removes the directory, if no blob is left in it. What makes it a layout goes last, so
// that one which a crash interrupts is found again.
func (l *Layout) leave() error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	index, err := l.index()
	if err != nil || len(index.Manifests) > 0 {
		return err
	}
	blobs := filepath.Join(l.dir, "blobs")
	for _, path := range []string{
		filepath.Join(blobs, digest.SHA256.String()), blobs, filepath.Join(l.dir, v1.ImageIndexFile),
		filepath.Join(l.dir, ".lock"),
		filepath.Join(l.dir, v1.ImageLayoutFile), l.dir,
	} {
		err := os.Remove(path)
		if errors.Is(err, syscall.ENOTEMPTY) { // younger than grace, or not godwit's
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
