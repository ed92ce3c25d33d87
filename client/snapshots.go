package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/nearest"
)

// ResolveSnapshot finds the digest, sha256:<64 hex digits>, that ref is, that begins with ref, or whose snapshot has
// the name ref. A whole digest is answered as it is. A beginning and a name are looked for among the snapshots of vm,
// or of all VMs for nil. NotFound is answered only if the whole list was read. Several digests: *AmbiguousError.
func (c *Client) ResolveSnapshot(ctx context.Context, ref string, vm *nodev1.VM) (string, error) {
	if err := CheckSnapshot(ref); err != nil {
		return "", err
	}
	digest, whole, err := ParseDigest(ref)
	if whole {
		return digest, nil
	}
	is := func(s *nodev1.SnapshotInfo) bool { return strings.HasPrefix(s.GetDigest(), digest) }
	none := "No snapshot has a digest that begins with " + digest + "."
	if err != nil {
		is = func(s *nodev1.SnapshotInfo) bool { return s.GetName() == ref }
		none = fmt.Sprintf("No snapshot has the name %s.", ref)
	}
	node, err := c.Node(ctx)
	if err != nil {
		return "", err
	}
	resp, err := node.Snapshots(ctx, &nodev1.SnapshotsRequest{Vm: vm})
	if err != nil {
		return "", record.FromWire(err)
	}
	found := map[string]bool{}
	for _, s := range resp.GetSnapshots() {
		if is(s) {
			found[s.GetDigest()] = true
		}
	}
	switch w := resp.GetWarning(); {
	case len(found) > 1:
		return "", &AmbiguousError{Kind: "snapshot", Ref: ref, Candidates: slices.Sorted(maps.Keys(found))}
	case w != "":
		return "", notWhole("snapshot", ref, []error{fmt.Errorf("%s: %w", w, errdefs.ErrUnavailable)})
	case len(found) == 1:
		for d := range found {
			return d, nil
		}
	}
	var names []string
	for _, s := range resp.GetSnapshots() {
		names = append(names, s.GetName())
	}
	return "", &Problem{What: none, Why: nearest.Question(ref, slices.DeleteFunc(names, empty)),
		Remedy: "To see all snapshots: godwit snapshot ls.", Cause: errdefs.ErrNotFound}
}
