package errno

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
)

// Each fault of a host has a class that says what a user can do, however deep it is wrapped. A
// class that another layer gave is kept.
func TestFaultsOfTheHostHaveAClass(t *testing.T) {
	refused := func() error {
		_, err := net.Dial("unix", filepath.Join(t.TempDir(), "no-server"))
		return err
	}
	for name, c := range map[string]struct{ err, want error }{
		"a full disk": {&os.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC},
			errdefs.ErrResourceExhausted},
		"a quota":             {syscall.EDQUOT, errdefs.ErrResourceExhausted},
		"no descriptor":       {&os.SyscallError{Syscall: "pipe2", Err: syscall.EMFILE}, errdefs.ErrResourceExhausted},
		"no descriptor, host": {syscall.ENFILE, errdefs.ErrResourceExhausted},
		"no process": {&os.PathError{Op: "fork/exec", Path: "p", Err: syscall.EAGAIN},
			errdefs.ErrResourceExhausted},
		"no memory":                {syscall.ENOMEM, errdefs.ErrResourceExhausted},
		"a disk that is read-only": {syscall.EROFS, errdefs.ErrFailedPrecondition},
		"not allowed":              {fs.ErrPermission, errdefs.ErrPermissionDenied},
		"not listening": {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
			errdefs.ErrUnavailable},
		"a cut connection":       {syscall.ECONNRESET, errdefs.ErrUnavailable},
		"a closed connection":    {ttrpc.ErrClosed, errdefs.ErrUnavailable},
		"a full pipe's end":      {syscall.EPIPE, errdefs.ErrUnavailable},
		"no way to a host":       {syscall.EHOSTUNREACH, errdefs.ErrUnavailable},
		"a deadline of a socket": {os.ErrDeadlineExceeded, errdefs.ErrUnavailable},
		"a killed helper":        {run("kill -KILL $$"), errdefs.ErrUnavailable},
		"an ended helper":        {run("kill -TERM $$"), errdefs.ErrUnavailable},
		"a helper's own fault":   {run("kill -SEGV $$"), errdefs.ErrUnknown},
		"a helper's own error":   {run("exit 1"), errdefs.ErrUnknown},
		"nothing of the host":    {errors.New("x"), errdefs.ErrUnknown},
		"no file":                {refused(), errdefs.ErrUnknown},
		"a class of its own":     {fmt.Errorf("%w: %w", syscall.ENOSPC, errdefs.ErrDataLoss), errdefs.ErrDataLoss},
		"an end of a context":    {context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		if got := Resolve(fmt.Errorf("a: %w", errors.Join(errors.New("b"), c.err))); got != c.want {
			t.Errorf("%s (%v): %v, want %v", name, c.err, got, c.want)
		}
	}
	if err := Resolve(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func run(script string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return exec.CommandContext(ctx, "/bin/sh", "-c", script).Run()
}
