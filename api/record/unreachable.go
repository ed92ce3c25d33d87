package record

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
)

// Unreachable is what every program says of a godwitd that does not answer at that address. The cause is told and no
// class of its own. The class is Unavailable, or PermissionDenied of a socket that the user may not open.
func Unreachable(address string, cause error) error {
	here := filepath.IsAbs(address)
	switch {
	case here && errors.Is(cause, fs.ErrPermission):
		return &plain{"you may not use the socket of godwitd, " + address + ". To go on, run the command as root, " +
			"as with sudo",
			errdefs.ErrPermissionDenied}
	case here && (errors.Is(cause, fs.ErrNotExist) || errors.Is(cause, syscall.ECONNREFUSED)):
		return fmt.Errorf("godwitd does not run: nothing listens at %s. To start it: systemctl start godwitd. "+
			"To see why it has ended: journalctl -u godwitd: %w", address, errdefs.ErrUnavailable)
	case here:
		return fmt.Errorf("godwitd does not answer at %s: %v. To see whether it runs: systemctl status godwitd: %w", address,
			cause, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("godwitd does not answer at %s: %v. To see whether it runs, on that host: systemctl status "+
		"godwitd: %w", address, cause, errdefs.ErrUnavailable)
}
