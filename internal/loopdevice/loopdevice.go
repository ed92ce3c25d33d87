// Package loopdevice gives tests a block device.
package loopdevice

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
)

// New makes a block device of that many bytes, which ends with the test. It needs root.
func New(t testing.TB, size int64) (path string) {
	t.Helper()
	backing := filepath.Join(t.TempDir(), "backing")
	if err := errors.Join(os.WriteFile(backing, nil, 0o600), os.Truncate(backing, size)); err != nil {
		t.Fatal(err)
	}
	path, err := mount.AttachLoopDevice(backing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.DetachLoopDevice(path); err != nil {
			t.Error(err)
		}
	})
	return path
}
