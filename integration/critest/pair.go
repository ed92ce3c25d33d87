package critest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"godwit.dev/godwit/integration/harness"
)

// OpenPair makes two nodes of a cluster, with the registry of the suites' images next to them. Closing one of them
// closes both.
func OpenPair(ctx context.Context, release harness.Release, log func(string, ...any)) (pair [2]*Ground, err error) {
	root, err := harness.Root()
	if err != nil {
		return pair, err
	}
	tools := filepath.Join(root, "bin", "tools")
	h, err := harness.Start(ctx, harness.Options{CRI: true, Release: release, Registry: harness.Direct, Log: log,
		Nodes: len(pair), Godwitd: true, Containerd: fmt.Sprintf(config, filepath.Join(tools, "runc"))})
	if err != nil {
		return pair, err
	}
	for i := range pair {
		pair[i] = &Ground{Node: h.Node(i), h: h, tools: tools, stop: func() {}}
		if err = pair[i].write(); err != nil {
			return pair, errors.Join(err, h.Close())
		}
	}
	if err := pair[0].fill(ctx); err != nil {
		return pair, errors.Join(err, h.Close())
	}
	return pair, nil
}
