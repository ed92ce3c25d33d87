// Package errno gives errors of the operating system a class. Some are faults of the host: a
// full disk, no free descriptors, a cut connection, a killed helper. Their class tells a user
// whether to try again.
package errno

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
)

// classes of errors that have none when they come to the user.
var classes = []struct {
	class error
	of    []error
}{
	{errdefs.ErrResourceExhausted, []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
		syscall.EAGAIN, syscall.ENOBUFS}},
	{errdefs.ErrFailedPrecondition, []error{syscall.EROFS}},
	{errdefs.ErrPermissionDenied, []error{os.ErrPermission}},
	{errdefs.ErrUnavailable, []error{
		ttrpc.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.ENETRESET, syscall.ENOTCONN,
		os.ErrDeadlineExceeded,
	}},
}

// Resolve answers the class of err as errdefs.Resolve does. An error without a class has the one
// of what the operating system has said; ErrUnknown: it has said nothing.
func Resolve(err error) error {
	class := errdefs.Resolve(err)
	if class != errdefs.ErrUnknown {
		return class
	}
	for _, c := range classes {
		for _, is := range c.of {
			if errors.Is(err, is) {
				return c.class
			}
		}
	}
	if Killed(err) {
		return errdefs.ErrUnavailable
	}
	return class
}

// Killed reports whether err is of a program that was ended from outside: by an operator, or by the
// kernel for want of memory. A program that ended by a fault of its own was not killed.
func Killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && FromOutside(status.Signal())
}

// FromOutside reports whether the signal that has ended a program came from outside.
func FromOutside(signal syscall.Signal) bool {
	switch signal {
	case syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP:
		return true
	}
	return false
}

// Classed is err with its class, if Resolve knows one that err itself does not carry.
func Classed(err error) error {
	class := Resolve(err)
	if err == nil || class == errdefs.ErrUnknown || errors.Is(err, class) {
		return err
	}
	return fmt.Errorf("%w: %w", err, class)
}

// WasKilled is in the text of the error of a helper process that somebody has killed. The text is all
// that is left of it once it has crossed containerd.
const WasKilled = "its process was killed"

// SaysKilled reports whether an error is one of these, however far it has come.
func SaysKilled(err error) bool { return err != nil && strings.Contains(err.Error(), WasKilled) }
