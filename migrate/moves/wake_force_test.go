package moves

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (*place) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, nil
}

func (s *sleeper) Open(context.Context, *nodev1.OpenRequest) (*nodev1.Record, error) {
	return s.rec, s.err
}

// Under move.pull = "controller" a node that did not have a VM last gives none of its states up: it orders a wake of
// the newest one alone. That is so wherever the VM would wake, and also where it is placed later.
func TestWakeOfAnOlderStateIsNotAnyNodes(t *testing.T) {
	older := &nodev1.WakeRequest{Digest: "sha256:old", Force: true}
	for name, c := range map[string]struct {
		by      string // empty: the controller's host
		pull    controller.Pull
		wake    *nodev1.WakeRequest
		refused bool
	}{
		"older, forced": {"c", controller.PullController, older, true},
		"older":         {"c", controller.PullController, &nodev1.WakeRequest{Digest: "sha256:old"}, true},
		"the newest, by force": {"c", controller.PullController,
			&nodev1.WakeRequest{Digest: "sha256:new", Force: true}, true},
		"the newest":            {"c", controller.PullController, &nodev1.WakeRequest{}, false},
		"the newest, by digest": {"c", controller.PullController, &nodev1.WakeRequest{Digest: "sha256:new"}, false},
		"older, by its node":    {"b", controller.PullController, older, false},
		"older, by the host":    {"", controller.PullController, older, false},
		"older, by a node that has it by its word alone": {"b", controller.PullController, older, true},
		"any node could boot it":                         {"c", controller.PullAny, older, false},
		"without a configuration":                        {"c", "", older, false},
	} {
		for _, placed := range []bool{false, true} {
			s, svc := newSleeper()
			s.rec.Home, svc.Pull = "b", c.pull
			p := &placer{makes: placed}
			svc.Placer = p
			c.wake.Vm = s.rec.GetVm()
			ctx := t.Context()
			if c.by != "" {
				ctx = controller.WithPeer(ctx, c.by)
			}
			for _, ref := range s.rec.GetSnapshots() {
				ref.Guarded = name == "older, by a node that has it by its word alone"
			}
			_, err := svc.Wake(ctx, &nodev1.WakeOrder{Wake: c.wake})
			if ordered := s.woke() != "" || p.got != nil; ordered == c.refused || errdefs.IsPermissionDenied(err) != c.refused {
				t.Errorf("%s, placed later %v: ordered %v, %v", name, placed, ordered, err)
			}
		}
	}
}
