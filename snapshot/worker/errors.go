package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/errno"
)

// remoteError carries an error's text and class out of the worker.
type remoteError struct {
	Class string `json:"class"`
	Text  string `json:"text"`
}

// ErrStranger is of a connection that was not the source's: nothing of it was read, and no file was touched.
var ErrStranger = fmt.Errorf("who connected is not the source: %w", errdefs.ErrUnauthenticated)

var classes = map[string]error{
	"canceled":            context.Canceled,
	"deadline exceeded":   context.DeadlineExceeded,
	"invalid argument":    errdefs.ErrInvalidArgument,
	"not found":           errdefs.ErrNotFound,
	"already exists":      errdefs.ErrAlreadyExists,
	"permission denied":   errdefs.ErrPermissionDenied,
	"unauthenticated":     errdefs.ErrUnauthenticated,
	strangerClass:         ErrStranger,
	"resource exhausted":  errdefs.ErrResourceExhausted,
	"failed precondition": errdefs.ErrFailedPrecondition,
	"aborted":             errdefs.ErrAborted,
	"out of range":        errdefs.ErrOutOfRange,
	"not implemented":     errdefs.ErrNotImplemented,
	"internal":            errdefs.ErrInternal,
	"unavailable":         errdefs.ErrUnavailable,
	"data loss":           errdefs.ErrDataLoss,
}

// strangerClass is no class that a peer can name.
const strangerClass = "stranger"

func newRemoteError(err error) *remoteError {
	if errors.Is(err, ErrStranger) {
		return &remoteError{Class: strangerClass, Text: err.Error()}
	}
	resolved := errno.Resolve(err)
	for name, class := range classes {
		if errors.Is(resolved, class) {
			return &remoteError{Class: name, Text: err.Error()}
		}
	}
	return &remoteError{Class: "unknown", Text: err.Error()}
}

func (e *remoteError) Error() string { return e.Text }

// Unwrap returns the class.
func (e *remoteError) Unwrap() error {
	if class, ok := classes[e.Class]; ok {
		return class
	}
	return errdefs.ErrUnknown
}
