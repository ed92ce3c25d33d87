package shim

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// What Create does not do is never Unimplemented on the wire: containerd would try an
// older API, whose absence hides the reason.
func TestCreateIsImplemented(t *testing.T) {
	w := newWorld(t)
	r := w.bundle()
	r.Checkpoint = "/somewhere"
	_, err := w.service.Create(ctxNS(t), r)
	if err = errgrpc.ToNative(err); !errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "checkpoint /somewhere") {
		t.Errorf("error %v", err)
	}
	w.nothingLeft()
}
