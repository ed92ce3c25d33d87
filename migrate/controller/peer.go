package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"
)

type peerKey struct{}

// WithPeer marks a connection as that of another node; without it the caller is this
// host's root.
func WithPeer(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, peerKey{}, node)
}

// Peer answers the node at the other end; ok is false for a local caller.
func Peer(ctx context.Context) (node string, ok bool) {
	node, ok = ctx.Value(peerKey{}).(string)
	return node, ok
}

// authorize lets a node act only where it takes part (N-39); nil is every node.
func authorize(ctx context.Context, nodes []string) error {
	peer, remote := Peer(ctx)
	if !remote || nodes == nil || peer != "" && slices.Contains(nodes, peer) {
		return nil
	}
	return fmt.Errorf("node %s takes no part in this, %q do: %w", peer, nodes, errdefs.ErrPermissionDenied)
}

func only(nodes ...string) func(transition.State) []string {
	return func(transition.State) []string { return nodes }
}

// parties are the source and the destination of the operation that the call names. An
// unknown one needs no check: its transition is refused for everybody.
func parties(s transition.State) []string {
	if s.Named == nil {
		return nil
	}
	return []string{s.Named.GetSource(), s.Named.GetDestination()}
}
