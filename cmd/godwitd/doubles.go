package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// nameTwice tells the cluster of two machines under one name.
func (m *mover) nameTwice(ctx context.Context, node, reason string) {
	slog.WarnContext(ctx, "two machines use one name", "node", node, "reason", reason)
	m.name(ctx, moves.NameTwice, node, reason)
}

// contradicts tells the cluster of a node that says what the records do not bear out.
func (m *mover) contradicts(ctx context.Context, node, reason string) {
	slog.WarnContext(ctx, "a node says what the records do not bear out (godwit controller status)", "node", node, "reason", reason)
	m.name(ctx, moves.Contradicts, node, reason)
}

// name writes an event about a node.
func (m *mover) name(ctx context.Context, kind, node, reason string) {
	ctx, cancel := context.WithTimeout(ctx, nameBound)
	defer cancel()
	if err := m.board.Append(ctx, &nodev1.MoveEvent{Type: kind, Source: node, Reason: reason}); err != nil {
		slog.WarnContext(ctx, "write event", "type", kind, "error", err)
	}
}

// nameBound is how long the store of events is waited for.
const nameBound = 5 * time.Second

// taken refuses a second machine under a name that a node has, unless that node was retired.
func (d *daemon) taken(ctx context.Context, name string) error {
	known, err := d.moves.board.Node(name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	state, err := d.whole.State(ctx, &nodev1.StateRequest{})
	if err != nil {
		return fmt.Errorf("join as node %s: ask whether it was retired: %w", name, err)
	}
	if slices.Contains(state.GetRetired(), name) {
		return nil
	}
	return fmt.Errorf("join as node %s: a node of that name announced itself at %s: choose another name, or, if it is that machine or takes its place, make the token with --renew: %w",
		name, time.Unix(0, known.GetSeenUnixNano()).UTC().Format(time.RFC3339), errdefs.ErrAlreadyExists)
}

// refusedFor is how long doctor tells of a machine that was refused for its name.
const refusedFor = 10 * time.Minute

// oneName is doctor's finding about machines that were refused for the name of another one.
func (d *daemon) oneName(context.Context) (string, error) {
	if twice := d.doubles.Refused(refusedFor); len(twice) > 0 {
		return "", fmt.Errorf("two machines use the name %q, and one of them was refused: %w", twice, errdefs.ErrAlreadyExists)
	}
	return "no second machine was refused lately", nil
}

// up reports whether the controller hears a node; one that it does not know it does not hear.
func (m *mover) up(ctx context.Context, name string) (bool, error) {
	resp, err := m.service.Nodes(ctx, &nodev1.NodesRequest{Node: name})
	if err != nil {
		return false, fmt.Errorf("ask the controller whether node %s is heard: %w", name, err)
	}
	for _, n := range resp.GetNodes() {
		if n.GetName() == name {
			return n.GetUp(), nil
		}
	}
	return false, nil
}
