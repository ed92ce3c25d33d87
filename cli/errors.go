package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/internal/errno"
)

// classes gives each error class its name in JSON and its exit code (docs/reference/errors.md).
var classes = []struct {
	is    func(error) bool
	class error
	name  string
	exit  int
}{
	{errdefs.IsInvalidArgument, errdefs.ErrInvalidArgument, "InvalidArgument", 2},
	{errdefs.IsNotFound, errdefs.ErrNotFound, "NotFound", 3},
	{errdefs.IsAlreadyExists, errdefs.ErrAlreadyExists, "AlreadyExists", 4},
	{errdefs.IsFailedPrecondition, errdefs.ErrFailedPrecondition, "FailedPrecondition", 4},
	{errdefs.IsConflict, errdefs.ErrConflict, "Conflict", 4},
	{errdefs.IsAborted, errdefs.ErrAborted, "Aborted", 5},
	{errdefs.IsUnavailable, errdefs.ErrUnavailable, "Unavailable", 6},
	{errdefs.IsDeadlineExceeded, context.DeadlineExceeded, "DeadlineExceeded", 6},
	{errdefs.IsPermissionDenied, errdefs.ErrPermissionDenied, "PermissionDenied", 7},
	{errdefs.IsUnauthorized, errdefs.ErrUnauthenticated, "Unauthenticated", 7},
	{errdefs.IsResourceExhausted, errdefs.ErrResourceExhausted, "ResourceExhausted", 8},
	{errdefs.IsDataLoss, errdefs.ErrDataLoss, "DataLoss", 9},
	{errdefs.IsNotImplemented, errdefs.ErrNotImplemented, "NotImplemented", 10},
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

// printError writes the one shape that every error has. With --verbose all that is known of it comes after that.
func (o *options) printError(w io.Writer, err error) {
	if end, ok := errors.AsType[*exitError](err); ok && end.err == nil {
		return
	}
	class, code := classify(err)
	p := o.explain(err)
	if o.machine() {
		_ = screen.Each(w, o.format(),
			errorDocument{errorParts{class, code, p.Error(), p.What, p.Why, p.Remedy, err.Error()}})
		return
	}
	fmt.Fprintln(w, prefixed(line(p.Error())))
	if o.verbose {
		_ = tell(w, "godwit: %s (%s, exit code %d)\n", strings.TrimPrefix(err.Error(), "godwit: "), class, code)
	}
}

// prefixed begins with the program that speaks, once.
func prefixed(text string) string {
	if strings.HasPrefix(text, "godwit: ") || strings.HasPrefix(text, "godwit ") {
		return text
	}
	return "godwit: " + text
}

// errorDocument is the document of an error.
type errorDocument struct {
	Error errorParts `json:"error"`
}

type errorParts struct {
	Class   string `json:"class"`
	Exit    int    `json:"exit"`
	Message string `json:"message"` // the next three, as a user reads them
	What    string `json:"what"`
	Why     string `json:"why,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Details string `json:"details"` // as it was passed on
}
