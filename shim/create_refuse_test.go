package shim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// What Create does not do is never Unimplemented on the wire: containerd would try an
// older API, whose absence hides the reason.
func TestCreateIsImplemented(t *testing.T) {
	err := implemented(fmt.Errorf("restore snapshot x: %w", errdefs.ErrNotImplemented))
	if !errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "snapshot x") {
		t.Errorf("error %v", err)
	}
	if err := implemented(fmt.Errorf("x: %w", errdefs.ErrNotFound)); !errdefs.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
}
