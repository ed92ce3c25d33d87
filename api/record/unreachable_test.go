package record

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

// A socket that is the user's to open tells how to start godwitd. One that is not is no matter of trying again.
func TestUnreachable(t *testing.T) {
	for _, c := range []struct {
		address string
		cause   error
		is      func(error) bool
		says    string
	}{
		{"/run/s", syscall.ENOENT, errdefs.IsUnavailable, "systemctl start godwitd"},
		{"/run/s", syscall.ECONNREFUSED, errdefs.IsUnavailable, "systemctl start godwitd"},
		{"/run/s", syscall.EACCES, errdefs.IsPermissionDenied, "as root"},
		{"/run/s", errors.New("EOF"), errdefs.IsUnavailable, "systemctl status godwitd"},
		{"HOST:7412", syscall.ECONNREFUSED, errdefs.IsUnavailable, "on that host: systemctl status godwitd"},
	} {
		if err := Unreachable(c.address, c.cause); !c.is(err) || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), c.address) {
			t.Errorf("%s, %v: %v", c.address, c.cause, err)
		}
	}
}
