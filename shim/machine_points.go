//go:build points

package shim

import (
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/internal/failpoint"
)

// UnaryServerInterceptor makes points of the calls on containerd's socket.
func (s *Service) UnaryServerInterceptor() ttrpc.UnaryServerInterceptor { return failpoint.Calls }
