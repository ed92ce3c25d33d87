package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What a user sees at the other end of the wire: one line, one class.
func TestErrorsCrossTheWire(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		is   func(error) bool
		text string
	}{
		"one class": {fmt.Errorf("a: %w", errdefs.ErrDataLoss), errdefs.IsDataLoss, "a: data loss"},
		"two wrapped": {fmt.Errorf("a: %w: %w", fs.ErrNotExist, errdefs.ErrUnavailable), errdefs.IsUnavailable,
			"a: file does not exist: unavailable"},
		"class in front": {fmt.Errorf("a: %w: %w", errdefs.ErrUnavailable, fs.ErrNotExist), errdefs.IsUnavailable,
			"a: unavailable: file does not exist: unavailable"},
		"joined": {errors.Join(fmt.Errorf("a: %w", errdefs.ErrAborted), errors.New("undo b")), errdefs.IsAborted,
			"a: aborted; undo b: aborted"},
		"a status": {status.Error(codes.NotFound, "a"), errdefs.IsNotFound, "a: not found"},
		"a full disk": {fmt.Errorf("write a: %w", syscall.ENOSPC), errdefs.IsResourceExhausted,
			"write a: no space left on device: resource exhausted"},
		"without a class": {errors.New("a"), errdefs.IsUnknown, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := errgrpc.ToNative(ToWire(c.err))
			if !c.is(got) || got.Error() != c.text {
				t.Errorf("got %q, want %q", got, c.text)
			}
		})
	}
	if err := ToWire(Plain(nil)); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func TestClassIsKept(t *testing.T) {
	for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated,
		context.DeadlineExceeded} {
		if got := ClassOf(Class(fmt.Errorf("a: %w", class))); !errors.Is(got, class) {
			t.Errorf("%v became %v", class, got)
		}
	}
	if got := ClassOf(Class(fmt.Errorf("a: %w", syscall.ECONNRESET))); !errdefs.IsUnavailable(got) {
		t.Errorf("a cut connection became %v", got)
	}
	if got := ClassOf(Class(errors.New("a"))); got != nil {
		t.Errorf("no class became %v", got)
	}
}

// A daemon that is killed while it is asked is unavailable, and it is not known what it has
// done.
func TestCutConnectionIsUnavailable(t *testing.T) {
	if got := FromWire(ttrpc.ErrClosed); !errdefs.IsUnavailable(got) || !strings.Contains(got.Error(), "may be done") {
		t.Errorf("got %v", got)
	}
}

// The record of a refusal crosses too: the loser of a race learns who won.
func TestHeldCrossesTheWire(t *testing.T) {
	rec := &nodev1.Record{Owner: &nodev1.Owner{Node: "b"}, Generation: 3}
	got := FromWire(ToWire(fmt.Errorf("open: %w", &HeldError{Call: "own", Record: rec})))
	var held *HeldError
	if !errors.As(got, &held) || held.Record.GetOwner().GetNode() != "b" || !errdefs.IsFailedPrecondition(got) {
		t.Errorf("got %#v", got)
	}
	if want := "open: own: node b owns it at generation 3: failed precondition"; got.Error() != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A VM that a move has lost is its destination's by name: a refusal says both, and what helps.
func TestHeldNamesTheRemedyOfALoss(t *testing.T) {
	rec := &nodev1.Record{Owner: &nodev1.Owner{Node: "b"}, Kept: &nodev1.Kept{Node: "a", Destination: "b"}}
	got := (&HeldError{Call: "own", Record: rec}).Error()
	for _, want := range []string{"node b owns it", "node a holds it", "godwit recover --from-source"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}
