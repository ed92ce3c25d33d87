package store

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

var (
	errStalled  = fmt.Errorf("the registry has sent or taken nothing for a minute: %w", errdefs.ErrUnavailable)
	errSlow     = fmt.Errorf("the registry has not ended its answer within two minutes: %w", errdefs.ErrUnavailable)
	errSlowTags = fmt.Errorf("the registry has not ended its list of tags in time: %w", errdefs.ErrUnavailable)
)

// statusError is a registry's refusal.
type statusError struct {
	code int
	text string // of the answer, bounded; never of the request, which may hold credentials

	after time.Duration // that the registry asks to be left alone; 0: it does not say
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the registry answered %d %s%s", e.code, http.StatusText(e.code), e.text)
}

// Unwrap returns the class.
func (e *statusError) Unwrap() error {
	return class(e.code, e.text)
}

// retryAfter implements waiter.
func (e *statusError) retryAfter() time.Duration { return e.after }

// class of a status. 404 is left to the call, which knows what it asked for.
func class(code int, text string) error {
	quota := strings.Contains(strings.ToLower(text), "quota")
	switch {
	case code == http.StatusUnauthorized:
		return errdefs.ErrUnauthenticated
	case code == http.StatusRequestEntityTooLarge, code == http.StatusInsufficientStorage,
		quota && (code == http.StatusForbidden || code == http.StatusPreconditionFailed || code == http.StatusConflict):
		return errdefs.ErrResourceExhausted
	case code == http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case code == http.StatusMethodNotAllowed, code == http.StatusNotImplemented, code == http.StatusBadRequest &&
		strings.Contains(text, `"UNSUPPORTED"`):
		return errdefs.ErrNotImplemented
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return errdefs.ErrUnavailable
	default:
		return errdefs.ErrUnknown
	}
}

func newStatus(resp *http.Response) *statusError {
	e := &statusError{code: resp.StatusCode, after: retryAfter(resp.Header.Get("Retry-After"))}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return e
	}
	var answer struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &answer) == nil {
		for _, d := range answer.Errors {
			e.text += fmt.Sprintf(": %.64q %.256q", d.Code, d.Message)
		}
	}
	return e
}

// retryAfter reads seconds or a date; nonsense is 0.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// callError says what was asked and gives the error its class.
func (h *host) callError(ctx context.Context, c call, err error) error {
	what := fmt.Sprintf("%s %s in %s", c.verb, c.object, h.repo)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	var refused *statusError
	var shook *transport.Error
	var asked *url.Error
	switch {
	case errors.As(err, &refused) && refused.code == http.StatusNotFound:
		return fmt.Errorf("%s: %v%s: %w", what, err, missing(c), notFound(c)) // one class: the first one crosses the wire
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %w%s", what, err, remedy(refused.code))
	case errors.As(err, &shook):
		return fmt.Errorf("%s: to the login the registry answered %d%s: %w", what, shook.StatusCode, remedy(shook.StatusCode),
			authClass(shook))
	case errors.As(err, &asked):
		err = asked.Err // the address of an upload is a secret of its session
	}
	if cert := new(tls.CertificateVerificationError); errors.As(err, &cert) {
		return fmt.Errorf("%s: its certificate is not trusted: %v. To trust it: registry.ca_file: "+
			"%w", what, cert.Err, errdefs.ErrFailedPrecondition)
	}
	if dialed := new(net.OpError); errors.As(err, &dialed) && dialed.Op == "dial" {
		return fmt.Errorf("%s: the registry does not answer: %w. To go on, have it run, or see registry.repository", what,
			classify(err))
	}
	return fmt.Errorf("%s: %w", what, classify(err))
}

// remedy is what an operator can do about a refusal.
func remedy(code int) string {
	switch {
	case code == http.StatusUnauthorized:
		return ". It wants a login. To give it one: docker login, and registry.docker_config names the file"
	case code == http.StatusForbidden:
		return ". The login has too few rights. To go on, let it push, pull and delete in every repository below " +
			"registry.repository"
	case code == http.StatusTooManyRequests:
		return ". It is asked too often. To go on, try again later, or raise its limit"
	case code >= http.StatusInternalServerError && code != http.StatusInsufficientStorage:
		return ". It does not work. To see why: its own log"
	case code == http.StatusInsufficientStorage, code == http.StatusRequestEntityTooLarge:
		return ". It has no room. To make some: godwit snapshot prune"
	}
	return ""
}

// missing is what an operator can do about a 404 that is no answer to a question.
func missing(c call) string {
	switch class := notFound(c); {
	case errors.Is(class, errdefs.ErrFailedPrecondition):
		return ". It has no such repository, and makes none. To go on, make it there, or change registry.repository"
	case errors.Is(class, errdefs.ErrAborted):
		return ". A part of the snapshot is gone from it. To go on, try again"
	}
	return ""
}

// notFound is the class of a 404. Only to a question is it an answer.
func notFound(c call) error {
	switch c.method {
	case http.MethodGet, http.MethodHead, http.MethodDelete:
		return errdefs.ErrNotFound
	case http.MethodPost:
		return errdefs.ErrFailedPrecondition // no such repository, and the registry does not make it
	default:
		if c.object.Manifest {
			return errdefs.ErrAborted // a blob of it is gone: push again
		}
		return errdefs.ErrUnavailable // the upload's session is gone
	}
}

func authClass(e *transport.Error) error {
	if c := class(e.StatusCode, ""); c != errdefs.ErrUnknown {
		return c
	}
	return errdefs.ErrUnavailable
}
