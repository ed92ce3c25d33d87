package controller

import (
	"cmp"
	"context"
	"fmt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Mark is how far a controller has seen its store. The controller remembers it outside the store: it is the one
// sign of a store that went back which needs no other node's word.
type Mark struct {
	Incarnation uint64 `json:"incarnation"`
	Revision    uint64 `json:"revision"`
}

// compare orders marks. An incarnation begins anew: restored, a store is not as far as it was.
func (m Mark) compare(o Mark) int {
	return cmp.Or(cmp.Compare(m.Incarnation, o.Incarnation), cmp.Compare(m.Revision, o.Revision))
}

// Compare answers how far the store is. Where it is not as far as this controller has seen it, no
// record changes until Restore, and the answer is what was seen.
func (i *Incarnations) Compare(ctx context.Context, seen Mark) (Mark, error) {
	state, revision, err := i.store.Revision(ctx)
	if err != nil {
		return seen, err
	}
	now := Mark{Incarnation: state.GetIncarnation(), Revision: revision}
	if now.compare(seen) >= 0 {
		return now, nil
	}
	reason := fmt.Sprintf("it is at revision %d of incarnation %d, and the controller on node %s has seen revision %d "+
		"of incarnation %d", now.Revision, now.Incarnation, i.self, seen.Revision, seen.Incarnation)
	_, err = i.change(ctx, func(state *nodev1.StoreState) (bool, error) {
		if state.GetIncarnation() != now.Incarnation || state.GetBehind() != nil && state.GetBehind().GetNode() == "" {
			return false, nil
		}
		state.Behind = &nodev1.Doubt{Reason: reason, UnixNano: i.now().UnixNano(), Credible: true}
		return true, nil
	})
	return seen, err
}
