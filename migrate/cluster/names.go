package cluster

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

// warnBound is how long the store is waited for when an event about a node is written.
const warnBound = 5 * time.Second

// NameTwice tells the cluster of two machines under one name.
func (b *State) NameTwice(ctx context.Context, node, reason string) {
	slog.WarnContext(ctx, "two machines use one name", "node", node, "reason", reason)
	b.warn(ctx, moves.NameTwice, node, reason)
}

// Contradicts tells the cluster of a node that says what the records do not bear out.
func (b *State) Contradicts(ctx context.Context, node, reason string) {
	slog.WarnContext(ctx, "a node says what the records do not bear out (godwit controller status)", "node", node,
		"reason", reason)
	b.warn(ctx, moves.Contradicts, node, reason)
}

// warn writes an event about a node.
func (b *State) warn(ctx context.Context, kind, node, reason string) {
	ctx, cancel := context.WithTimeout(ctx, warnBound)
	defer cancel()
	if err := b.Append(ctx, &nodev1.MoveEvent{Type: kind, Source: node, Reason: reason}); err != nil {
		slog.WarnContext(ctx, "write event", "type", kind, "error", err)
	}
}

// Free refuses a second machine under a name that a node has, unless that node was retired: store says so.
func (b *State) Free(ctx context.Context, store nodev1.StoreService, name string) error {
	known, err := b.Node(name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	state, err := store.State(ctx, &nodev1.StateRequest{})
	if err != nil {
		return fmt.Errorf("join as node %s: ask whether it was retired: %w", name, err)
	}
	if slices.Contains(state.GetRetired(), name) {
		return nil
	}
	return fmt.Errorf("join as node %s: a node of that name announced itself at %s: choose another name, or, if it is "+
		"that machine or takes its place, make the token with --renew: %w",
		name, time.Unix(0, known.GetSeenUnixNano()).UTC().Format(time.RFC3339), errdefs.ErrAlreadyExists)
}
