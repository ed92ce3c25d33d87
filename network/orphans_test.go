package network

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/fdtest"
)

// On a node without descriptors a list of namespaces is an error, and not that there are none; a
// namespace that cannot be opened is not one that is gone, whose taps would count as deleted.
func TestNamespacesWithoutDescriptors(t *testing.T) {
	for left := range 2 {
		restore := fdtest.Exhaust(t, left)
		all, err := Namespaces()
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
