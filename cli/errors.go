package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/internal/errno"
)

// classes gives each error class its name in JSON and its exit code (docs/reference/errors.md).
var classes = []struct {
	is   func(error) bool
	name string
	exit int
}{
	{errdefs.IsInvalidArgument, "InvalidArgument", 2},
	{errdefs.IsNotFound, "NotFound", 3},
	{errdefs.IsAlreadyExists, "AlreadyExists", 4},
	{errdefs.IsFailedPrecondition, "FailedPrecondition", 4},
	{errdefs.IsConflict, "Conflict", 4},
	{errdefs.IsAborted, "Aborted", 5},
	{errdefs.IsUnavailable, "Unavailable", 6},
	{errdefs.IsDeadlineExceeded, "DeadlineExceeded", 6},
	{errdefs.IsPermissionDenied, "PermissionDenied", 7},
	{errdefs.IsUnauthorized, "Unauthenticated", 7},
	{errdefs.IsResourceExhausted, "ResourceExhausted", 8},
	{errdefs.IsDataLoss, "DataLoss", 9},
	{errdefs.IsNotImplemented, "NotImplemented", 10},
}

// interrupted is the exit code of a client that was told to stop; the operation it had
// started goes on.
const interrupted = 130

// classify names the class of err and its exit code.
func classify(err error) (string, int) {
	if end, ok := errors.AsType[*exitError](err); ok {
		class, _ := classify(end.err)
		return class, end.code
	}
	if errors.Is(err, context.Canceled) {
		return "Canceled", interrupted
	}
	for _, err := range []error{err, errno.Resolve(err)} {
		for _, c := range classes {
			if c.is(err) {
				return c.name, c.exit
			}
		}
	}
	return "Unknown", 1
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	_, code := classify(err)
	return code
}

// printError writes the one shape that every error has.
func printError(w io.Writer, output screen.Format, err error) {
	if end, ok := errors.AsType[*exitError](err); ok && end.err == nil {
		return
	}
	if !output.Machine() {
		fmt.Fprintln(w, "godwit:", err)
		return
	}
	class, code := classify(err)
	shape := map[string]any{"error": map[string]any{"class": class, "message": err.Error(), "exit": code}}
	_ = screen.Each(w, output, shape)
}
