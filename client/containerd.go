package client

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
)

// containerdError says what was asked of containerd. One that does not answer is told with its socket.
func (c *Client) containerdError(what string, err error) error {
	socket, _ := c.containerdSocket()
	if !errdefs.IsUnavailable(err) && !strings.Contains(err.Error(), "dial unix") {
		return fmt.Errorf("%s: %w", what, unwrapped(err))
	}
	// gRPC has the cause of a connection that fails as text alone.
	text := err.Error()
	for _, cause := range []error{fs.ErrPermission, syscall.ENOENT, syscall.ECONNREFUSED} {
		if !strings.Contains(text, cause.Error()) {
			continue
		}
		if errors.Is(cause, fs.ErrPermission) {
			return &Problem{What: "You may not use the socket of containerd, " + socket + ".",
				Remedy: "To go on, run the command as root, as with sudo.",
				Cause:  fmt.Errorf("%s: %w: %w", what, errdefs.ErrPermissionDenied, err)}
		}
		return &Problem{What: "containerd does not run: nothing listens at " + socket + ".",
			Remedy: "To start it: systemctl start containerd. To name another socket: --containerd.",
			Cause:  fmt.Errorf("%s: %w: %w", what, errdefs.ErrUnavailable, err)}
	}
	return &Problem{What: "containerd does not answer at " + socket + ".",
		Why:    sentence(what + ": " + strings.TrimSuffix(text, ": "+errdefs.ErrUnavailable.Error())),
		Remedy: "To see whether it runs: systemctl status containerd.",
		Cause:  fmt.Errorf("%s: %w: %w", what, errdefs.ErrUnavailable, err)}
}
