package network

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/fdtest"
)

// On a node without descriptors a list of namespaces is an error, and not that there are none. A namespace that cannot
// be opened is not one that is gone, whose taps would count as deleted.
func TestNamespacesWithoutDescriptors(t *testing.T) {
	for left := range 2 {
		restore := fdtest.Exhaust(t, left)
		all, err := ofProcesses()
		detach := Detach(t.Context(), "/proc/self/ns/net", nil)
		restore()
		if left == 0 && err == nil {
			t.Errorf("there are %v, and no error", all)
		}
		if detach == nil || errdefs.IsNotFound(detach) {
			t.Errorf("with %d descriptors detach = %v", left, detach)
		}
	}
	if _, err := Namespaces(); err != nil {
		t.Error(err)
	}
}

// A namespace that cannot be looked at is told in addition to those that can be; one that has gone is not.
func TestNamespaceThatCannotBeLookedAt(t *testing.T) {
	dir := t.TempDir()
	own, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	loop, other := filepath.Join(dir, "loop"), filepath.Join(dir, "other")
	if err := errors.Join(os.Symlink("loop", loop), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	all, err := distinct([]string{filepath.Join(dir, "gone"), dir, loop, other, other}, own)
	if !slices.Equal(all, []string{other}) || !errors.Is(err, unix.ELOOP) || errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespaces %v, %v", all, err)
	}
}
