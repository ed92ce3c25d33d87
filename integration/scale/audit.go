package scale

import (
	"context"
	"errors"
	"fmt"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// audit looks for what was lost or doubled: each VM is its node's, under the generation that its
// last claim was answered with, nothing was ended, and all nodes are up.
func (r *run) audit(ctx context.Context, store string, w *world, h *hosts, nodes int) (err error) {
	defer r.looked()
	state, err := h.order(Order{Do: "state", To: nodes})
	if err != nil {
		return err
	}
	for _, what := range state.Ended {
		r.violation("%s: %s was ordered", store, what)
	}
	id, err := pki.Load(pki.In(pkiDir(r.dir, 0)))
	if err != nil {
		return err
	}
	for _, address := range w.addresses {
		client := record.Remote([]string{address}, id.Client())
		board := moves.Over(client)
		err := errors.Join(r.auditRecords(ctx, store+" "+address, client, state.Generations, nodes),
			r.auditNodes(ctx, store+" "+address, board, nodes), client.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) auditRecords(ctx context.Context, who string, records nodev1.RecordsService,
	generations map[string]uint64, nodes int) error {
	all, err := records.List(ctx, &nodev1.ListRequest{})
	if err != nil {
		return fmt.Errorf("list all records: %w", err)
	}
	if n := len(all.GetRecords()); n != nodes*vmsOfNode {
		r.violation("%s: %d records", who, n)
	}
	for _, rec := range all.GetRecords() {
		id := rec.GetVm().GetId()
		if rec.GetOwner().GetNode() != id[:len(nodeName(0))] || rec.GetGeneration() != generations[id] {
			r.violation("%s: VM %s is of %v under %d, claimed under %d", who, id, rec.GetOwner(), rec.GetGeneration(),
				generations[id])
		}
	}
	return nil
}

func (r *run) auditNodes(ctx context.Context, who string, board nodev1.MovesService, nodes int) error {
	all, err := board.Nodes(ctx, &nodev1.NodesRequest{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	up := 0
	for _, n := range all.GetNodes() {
		if n.GetUp() && !n.GetController() {
			up++
		}
	}
	if up != nodes {
		r.violation("%s: %d nodes of %d are up", who, up, nodes)
	}
	return nil
}
