package harness

import "context"

// Wire is the place of the L2 itself, as a node: programs run there, and no containerd.
func (h *Harness) Wire() *Node {
	return &Node{Name: "wire", Address: Gateway, Dir: h.Dir, harness: h, holder: h.wire}
}

// Daemon starts a program that serves in the node, with its output in a log file of that name, and waits until ask
// answers nil. It ends with the harness at the latest.
func (n *Node) Daemon(ctx context.Context, name string, ask func(context.Context) error, program string,
	args ...string,
) (*Process, error) {
	cmd := n.Command(context.WithoutCancel(ctx), program, args...)
	p, err := n.harness.spawn(n.holder, n.Name+"-"+name+".log", cmd)
	if err != nil {
		return nil, err
	}
	n.harness.onClose(p.Stop)
	return p, p.ready(ctx, startTimeout(), ask)
}
