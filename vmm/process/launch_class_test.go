package process

import (
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/internal/fdtest"
)

// A namespace that cannot be opened for want of descriptors is not one that is missing.
func TestNamespaceThatCannotBeOpened(t *testing.T) {
	if err := enter(filepath.Join(t.TempDir(), "none")); !errdefs.IsNotFound(err) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	fdtest.Exhaust(t, 0)
	if err := enter("/proc/self/ns/net"); errdefs.IsNotFound(err) || errno.Resolve(err) != errdefs.ErrResourceExhausted {
		t.Errorf("without descriptors: %v", err)
	}
}

// What ends a process while it is launched says whether to try again.
func TestClassOfAnEndAtLaunch(t *testing.T) {
	for status, want := range map[unix.WaitStatus]error{
		unix.WaitStatus(unix.SIGKILL): errdefs.ErrUnavailable, unix.WaitStatus(unix.SIGSEGV): errdefs.ErrInternal,
		7 << 8: errdefs.ErrInternal,
	} {
		if got := endClass(status); got != want {
			t.Errorf("status %#x: %v, want %v", status, got, want)
		}
	}
}
