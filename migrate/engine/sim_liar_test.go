package engine

import (
	"context"
	"slices"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// simLiar is a node that runs no VM.
const simLiar = "liar"

// known are the nodes that have announced themselves.
func (r *simRounds) known() []string {
	if r.liar {
		return append(slices.Clone(simNodes), simLiar)
	}
	return simNodes
}

// lie has that node say that it has the VM too, once the store was put back with the command. A person then does
// what the record asks for.
func (r *simRounds) lie() {
	if !r.liar || !r.command {
		return
	}
	ctx := context.Background()
	st, err := r.s.memory.Load(ctx, vm, transition.Asked{})
	if err != nil {
		panic(err)
	}
	switch {
	case st.Store.GetWaiting() && slices.Contains(st.Store.GetMissing(), simLiar):
		req := &nodev1.ReportRequest{Node: simLiar, Incarnation: st.Store.GetIncarnation()}
		if slices.ContainsFunc(simNodes, func(name string) bool {
			return r.s.nodes[name].has() && r.s.nodes[name].journal() > st.Record.GetGeneration()
		}) {
			req.Held = []*nodev1.Held{{Vm: vm, Uid: r.uid, Generation: r.s.gen + 1, Phase: recordOwn}}
		}
		_, err = r.whole.Report(controller.WithPeer(ctx, simLiar), req)
	case !st.Store.GetWaiting() && st.Record.GetRivals() && !transition.Retired(st.Store, simLiar):
		_, err = r.whole.Restore(ctx, &nodev1.RestoreRequest{Retire: []string{simLiar}})
		r.retired++
		r.s.trace = append(r.s.trace, "two nodes have it: the one that lies is retired")
	}
	if err != nil {
		panic(err)
	}
}
