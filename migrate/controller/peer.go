package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

type peerKey struct{}

// WithPeer marks a connection as that of another node; without it the caller is this
// host's root.
func WithPeer(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, peerKey{}, node)
}

// WithoutPeer is for what a service of the controller does for a node once it has seen that
// the node may order it.
func WithoutPeer(ctx context.Context) context.Context {
	return context.WithValue(ctx, peerKey{}, nil)
}

// Peer answers the node at the other end; ok is false for a local caller.
func Peer(ctx context.Context) (node string, ok bool) {
	node, ok = ctx.Value(peerKey{}).(string)
	return node, ok
}

// authorize lets a node act only where it takes part; nil is every node.
func authorize(ctx context.Context, nodes []string) error {
	peer, remote := Peer(ctx)
	if !remote || nodes == nil || peer != "" && slices.Contains(nodes, peer) {
		return nil
	}
	return fmt.Errorf("node %s takes no part in this, %q do: order it there or on the controller: %w", peer, nodes,
		errdefs.ErrPermissionDenied)
}

// controllerOnly allows no node, only the controller.
func controllerOnly(transition.State) []string { return []string{} }

// holders may decide about a VM's snapshots, schedule and record: the node that has it, else those
// that had it last.
func holders(s transition.State) []string { return homes(s.Record) }

// Homes are the nodes whose VM it is; none: not known.
func Homes(rec *nodev1.Record) []string { return slices.Clone(homes(rec)) }

// homes are the nodes whose VM it is, or nil.
func homes(rec *nodev1.Record) []string {
	if node := transition.Home(rec); node != "" {
		return []string{node}
	}
	return nil
}

// deleters may say that a snapshot is deleted: the node that made it, the one that decided to delete
// it, and the one that is to. Of a pending deletion of a build before that names neither, any node.
func deleters(o *nodev1.Owed) (nodes []string) {
	for _, node := range []string{o.GetSnapshot().GetNode(), o.GetBy(), o.GetPayer()} {
		if node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func only(nodes ...string) func(transition.State) []string {
	return func(transition.State) []string { return nodes }
}

// parties may take the steps of the operation that the call names. An unknown one needs no
// check: its transition is refused for everybody.
func parties(s transition.State) []string {
	if s.Named == nil {
		return nil
	}
	return drivers(s.Named)
}

// drivers are the nodes whose engines, or shims, drive an operation. A move is the
// controller's alone: a destination that could take its steps would take any VM.
func drivers(op *nodev1.Operation) []string {
	switch op.GetKind() {
	case nodev1.Kind_KIND_MIGRATE:
		return []string{}
	case nodev1.Kind_KIND_WAKE:
		return []string{op.GetDestination()}
	}
	return []string{op.GetSource()}
}
