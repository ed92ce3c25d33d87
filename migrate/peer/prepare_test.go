package peer

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/engine"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// madeBefore is a containerd that has a task of the order, of whatever snapshot.
type madeBefore struct{ engine.Tasks }

func (madeBefore) Create(context.Context, *nodev1.VM, engine.Restore) error { return nil }

// A destination that was prepared from another snapshot of the same attempt does not count as prepared:
// records that were put back from a copy forget the first snapshot, and the source captures anew. The VM
// would go on as it was in the first one.
func TestPrepareWantsTheOrderedSnapshot(t *testing.T) {
	ref, vm := &machinev1.Ref{Operation: "op", Attempt: 1}, &nodev1.VM{Namespace: "default", Id: "web"}
	has := func(digest string) *machinev1.QueryResponse {
		return &machinev1.QueryResponse{State: "created", Record: "READY", Ref: ref, Digest: digest}
	}
	for name, c := range map[string]struct {
		shims shims
		want  func(error) bool
	}{
		"the ordered one":  {shims{query: has("sha256:2")}, func(err error) bool { return err == nil }},
		"another one":      {shims{query: has("sha256:1")}, errdefs.IsFailedPrecondition},
		"nothing any more": {shims{}, errdefs.IsNotFound},
		"no answer":        {shims{gone: true}, errdefs.IsUnavailable},
	} {
		s := &Server{Node: "n1", Tasks: madeBefore{}, Machines: &c.shims}
		if _, err := s.Prepare(t.Context(), &nodev1.PeerPrepareRequest{Vm: vm, Ref: ref, Digest: "sha256:2",
			Repository: "r/u"}); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
