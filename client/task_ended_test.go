package client

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A shim that is killed in a Start is something that may pass. containerd says Unknown, with ttrpc's words.
func TestShimEnded(t *testing.T) {
	passed := errgrpc.ToNative(status.Error(codes.Unknown, "ttrpc: closed"))
	got := shimEnded(errors.Join(passed, fmt.Errorf("end the task: %w", passed)))
	if !errdefs.IsUnavailable(got) || !errors.Is(got, passed) {
		t.Errorf("a shim that ended: %v", got)
	}
	if other := errgrpc.ToNative(status.Error(codes.Unknown, "boom")); shimEnded(other) != other {
		t.Errorf("another error: %v", shimEnded(other))
	}
	refused := fmt.Errorf("%s: %w", ttrpc.ErrClosed, errdefs.ErrFailedPrecondition)
	if shimEnded(refused) != refused || shimEnded(nil) != nil {
		t.Error("an error with a class has another one now")
	}
}
