package critest

import (
	"context"
	"errors"

	"godwit.dev/godwit/integration/harness"
)

// OpenPair makes two nodes of a cluster, with the registry of the suites' images next to them. Closing the first of
// them closes both.
func OpenPair(ctx context.Context, o harness.Options, only ...string) (pair [2]*Ground, err error) {
	o.Nodes, o.Godwitd = len(pair), true
	first, err := OpenWith(ctx, o, only...)
	if err != nil {
		return pair, err
	}
	second := &Ground{Node: first.h.Node(1), h: first.h, tools: first.tools, names: first.names, stop: func() {}}
	if err := second.write(); err != nil {
		return pair, errors.Join(err, first.Close())
	}
	return [2]*Ground{first, second}, nil
}
