package agentd

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
)

// A list that the kernel could not write in one piece is asked for again, and no half of it
// is believed: a wake would end over it, or take addresses away that it has not seen.
func TestInterruptedDump(t *testing.T) {
	for _, c := range []struct {
		interrupted int
		err         error
		want        error
	}{
		{0, nil, nil},
		{3, nil, nil},
		{2, errdefs.ErrPermissionDenied, errdefs.ErrPermissionDenied},
		{dumps, nil, errdefs.ErrUnavailable},
	} {
		asked := 0
		all, err := whole(func() ([]int, error) {
			if asked++; asked <= c.interrupted {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, c.err
		})
		if !errors.Is(err, c.want) || err == nil && len(all) != 2 || asked != min(c.interrupted+1, dumps) {
			t.Errorf("interrupted %d times: %v, %v after %d questions", c.interrupted, all, err, asked)
		}
	}
}
