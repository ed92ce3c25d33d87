package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func status(err error) (metav1.Status, bool) {
	var said apierrors.APIStatus
	if !errors.As(err, &said) {
		return metav1.Status{}, false
	}
	return said.Status(), true
}

// refused reports whether the API server has said that it did not do what it was asked for, and will not.
func refused(err error) bool {
	said, ok := status(err)
	return ok && said.Code >= http.StatusBadRequest && said.Code < http.StatusInternalServerError && !busy(err) &&
		said.Code != http.StatusRequestTimeout
}

// busy reports whether it has said that it did not do it yet. One that has just started refuses everybody, until it has
// read who may do what.
func busy(err error) bool {
	said, ok := status(err)
	return ok && (said.Code == http.StatusTooManyRequests || said.Code == http.StatusForbidden ||
		said.Code == http.StatusUnauthorized)
}

func retryAfter(err error) (time.Duration, bool) {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second, ok && seconds > 0
}

// absent reports whether there is no such object. That the API server does not know the kind at all has the same
// code: it is no word on an object.
func absent(err error) bool {
	said, ok := status(err)
	if !ok || said.Reason != metav1.StatusReasonNotFound || said.Details == nil {
		return false
	}
	return said.Details.Name != "" && !slices.ContainsFunc(said.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// IsAbsent reports whether an error of the API server, or of a cache of it, says that there is no such object. No other
// error does.
func IsAbsent(err error) bool { return err != nil && absent(err) }

// failed gives an error of the API server its class.
func failed(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status(err); !ok && errors.Is(err, context.Canceled) {
		return fmt.Errorf("ask the API server: %w", context.Canceled)
	}
	var class error = errdefs.ErrUnavailable
	switch {
	case absent(err):
		class = errdefs.ErrNotFound
	case apierrors.IsConflict(err):
		class = errdefs.ErrConflict
	case apierrors.IsAlreadyExists(err):
		class = errdefs.ErrAlreadyExists
	case apierrors.IsForbidden(err):
		class = errdefs.ErrPermissionDenied
	case apierrors.IsUnauthorized(err):
		class = errdefs.ErrUnauthenticated
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		class = errdefs.ErrOutOfRange
	case apierrors.IsRequestEntityTooLargeError(err):
		class = errdefs.ErrResourceExhausted
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err): // by its schema: no decision about a VM
		return fmt.Errorf("the API server takes no such object (kubectl apply -k of the schemas of this build): %w: %w",
			errdefs.ErrUnavailable, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API server does not know the kind (kubectl apply -k of godwit's schemas): %w: %w",
			errdefs.ErrFailedPrecondition, err)
	case refused(err):
		class = errdefs.ErrFailedPrecondition
	}
	return fmt.Errorf("ask the API server: %w: %w", class, err)
}
