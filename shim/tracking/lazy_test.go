package tracking

import (
	"os"
	"testing"

	"github.com/containerd/errdefs"
)

// The self-test of lazy restores answers on this kernel, and a program that has no such child is
// an answer too.
func TestLazyProbe(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a userfaultfd that the kernel waits for is root's")
	}
	if _, err := os.Stat("/dev/userfaultfd"); err != nil {
		t.Skip(err)
	}
	if err := (Lazy{prober()}).Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if err := (Lazy{Prober{Command: []string{"/bin/false"}}}).Probe(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("a program that has no such child: %v", err)
	}
}
