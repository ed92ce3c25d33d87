package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A Finding is what a Check asks for: what was found, or what is wrong.
type Finding = func(ctx context.Context) (string, error)

// RecordsFinding is about the store of the records: whether records change.
func RecordsFinding(store nodev1.StoreService) Finding {
	return func(ctx context.Context) (string, error) {
		state, err := store.State(ctx, &nodev1.StateRequest{})
		if errdefs.IsNotImplemented(err) {
			return "the controller is of a build before incarnations", nil
		}
		if err == nil {
			err = transition.Closed(state)
		}
		said := fmt.Sprintf("incarnation %d, %d conflicts", state.GetIncarnation(), state.GetConflicts())
		if nodes := doubters(state); len(nodes) > 0 {
			said += fmt.Sprintf(", contradicted by nodes %v (godwit controller status)", nodes)
		}
		return said, err
	}
}

// doubters are the nodes that say what the records do not bear out.
func doubters(state *nodev1.StoreState) (nodes []string) {
	for _, d := range state.GetDoubts() {
		nodes = append(nodes, d.GetNode())
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// refusedFor is how long doctor tells of a machine that was refused for its name.
const refusedFor = 10 * time.Minute

// NamesFinding is about machines that were refused for the name of another one.
func NamesFinding(doubles interface {
	Refused(within time.Duration) []string
}) Finding {
	return func(context.Context) (string, error) {
		if twice := doubles.Refused(refusedFor); len(twice) > 0 {
			return "", fmt.Errorf("two machines use the name %q, and one of them was refused: %w", twice,
				errdefs.ErrAlreadyExists)
		}
		return "no second machine was refused lately", nil
	}
}

// PullFinding says what move.pull means for the RAM of VMs.
func PullFinding(pull string) Finding {
	text := `move.pull is "any": each node of the cluster may wake or move any VM to itself, and ` +
		`read its RAM; set "controller" where nodes do not trust each other`
	if pull == config.PullController {
		text = `move.pull is "controller": a node has a VM that was not its own only by the controller's order`
	}
	return func(context.Context) (string, error) { return text, nil }
}
