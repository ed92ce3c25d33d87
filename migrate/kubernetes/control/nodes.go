package control

import (
	"context"

	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/store"
)

// runWith is Run, and has people see the nodes meanwhile: the controller that leads hears each of them by its
// certificate.
func (c *Controller) runWith(ctx context.Context, nodes *operator.Nodes) error {
	nodes.Heard = func() map[string]decide.NodeHeard { return operator.HeardOf(c.Cluster) }
	nodes.Records = func() func(string) decide.NodeRecords { return recordsOf(c.store) }
	ctx, stop := context.WithCancel(ctx)
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		nodes.Run(ctx)
	}()
	defer func() { stop(); <-seen }()
	return c.Run(ctx)
}

// recordsOf answers what the mirror of a store has of each node.
func recordsOf(st *store.Store) func(node string) decide.NodeRecords {
	of := decide.NodesOf{}
	known := st.EachCached(of.Add)
	state, judged := st.StateCached()
	contradicts := map[string]bool{}
	for _, d := range state.GetDoubts() {
		contradicts[d.GetNode()] = contradicts[d.GetNode()] || !d.GetRefuted()
	}
	return func(node string) decide.NodeRecords {
		r := decide.NodeRecords{Known: known, Judged: judged, Contradicts: contradicts[node]}
		r.VMs, r.Digests = of.Of(node)
		return r
	}
}
