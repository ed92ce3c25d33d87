package tasks

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"time"
)

// dialPause is between two looks for containerd's socket. containerd's own dialer looks a hundred times
// a second, for as long as containerd is away.
const dialPause = 200 * time.Millisecond

// dial connects to containerd. It waits for the socket as long as ctx allows: calls that come
// while containerd starts again wait with it.
func dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
		if !errors.Is(err, syscall.ENOENT) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialPause):
		}
	}
}
