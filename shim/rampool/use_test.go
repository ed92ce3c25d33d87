package rampool

import (
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// A directory that cannot be looked at is an error: the answer is not that it has no huge pages.
func TestHugeIsNotKnown(t *testing.T) {
	dir := t.TempDir()
	if huge, err := Huge(dir); huge || err != nil {
		t.Errorf("of a directory Huge = %t, %v", huge, err)
	}
	if _, err := Huge(filepath.Join(dir, "gone")); !errdefs.IsUnavailable(err) {
		t.Errorf("of one that cannot be looked at Huge = %v, want Unavailable", err)
	}
}
