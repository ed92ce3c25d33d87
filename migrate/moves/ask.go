package moves

import (
	"context"
	"fmt"

	"godwit.dev/godwit/migrate/engine"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Admits reports whether VMs may come to a node. The controller is asked each time: a
// cordon counts from the moment that it is answered.
func Admits(ctx context.Context, to nodev1.MovesService, node string) error {
	resp, err := to.Nodes(ctx, &nodev1.NodesRequest{Node: node})
	if err != nil {
		return fmt.Errorf("ask the controller whether this node is cordoned: %w", err)
	}
	for _, n := range resp.GetNodes() {
		if n.GetName() == node {
			return engine.Cordoned(n)
		}
	}
	return nil
}

// Up reports whether the controller hears a node; one that it does not know it does not hear.
func Up(ctx context.Context, to nodev1.MovesService, node string) (bool, error) {
	resp, err := to.Nodes(ctx, &nodev1.NodesRequest{Node: node})
	if err != nil {
		return false, fmt.Errorf("ask the controller whether node %s is heard: %w", node, err)
	}
	for _, n := range resp.GetNodes() {
		if n.GetName() == node {
			return n.GetUp(), nil
		}
	}
	return false, nil
}
