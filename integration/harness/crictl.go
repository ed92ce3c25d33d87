package harness

import (
	"context"
	"path/filepath"
	"time"
)

// CrictlArgs are crictl of the node's containerd, whose calls take so long at most, and then the arguments.
func (n *Node) CrictlArgs(limit time.Duration, args ...string) []string {
	return append([]string{filepath.Join(n.harness.root, "bin", "tools", "crictl"), "--runtime-endpoint",
		"unix://" + n.Socket, "--timeout", limit.String()}, args...)
}

// Crictl runs crictl on the node, and answers what it prints.
func (n *Node) Crictl(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	all := n.CrictlArgs(limit, args...)
	return n.Run(ctx, all[0], all[1:]...)
}
