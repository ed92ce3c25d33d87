//go:build !amd64

package process

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// syscallBytes: none are known, so that nothing is injected.
var syscallBytes []byte

func inject(int, uint64, *signals, uint64, ...uint64) (int, error) {
	return 0, fmt.Errorf("userfaultfd: not on this architecture: %w", errdefs.ErrNotImplemented)
}
