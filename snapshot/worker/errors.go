package worker

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/errno"
)

// remoteError carries an error's text and class out of the worker.
type remoteError struct {
	Class string `json:"class"`
	Text  string `json:"text"`
}

var classes = map[string]error{
	"canceled":            context.Canceled,
	"deadline exceeded":   context.DeadlineExceeded,
	"invalid argument":    errdefs.ErrInvalidArgument,
	"not found":           errdefs.ErrNotFound,
	"already exists":      errdefs.ErrAlreadyExists,
	"permission denied":   errdefs.ErrPermissionDenied,
	"unauthenticated":     errdefs.ErrUnauthenticated,
	"resource exhausted":  errdefs.ErrResourceExhausted,
	"failed precondition": errdefs.ErrFailedPrecondition,
	"aborted":             errdefs.ErrAborted,
	"out of range":        errdefs.ErrOutOfRange,
	"not implemented":     errdefs.ErrNotImplemented,
	"internal":            errdefs.ErrInternal,
	"unavailable":         errdefs.ErrUnavailable,
	"data loss":           errdefs.ErrDataLoss,
}

func newRemoteError(err error) *remoteError {
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
