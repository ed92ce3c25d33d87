package moves

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// placer remembers the order that it got.
type placer struct {
	makes bool
	err   error
	got   *nodev1.WakeOrder
}

func (p *placer) ByPlace(context.Context, *nodev1.Record) (bool, error) { return p.makes, p.err }

func (p *placer) WakePlaced(_ context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	p.got = order
	return &nodev1.StatusResponse{}, nil
}

// Where VMs are placed later, no node is asked: the wake is opened with the node that was ordered as a wish. A node
// says nothing of where output goes, since it does not know which node that is.
func TestWakeIsPlacedLater(t *testing.T) {
	s, svc := newSleeper()
	p := &placer{makes: true}
	svc.Placer = p
	order := &nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: s.rec.GetVm(), Operation: "w"}, On: "b"}
	if _, err := svc.Wake(t.Context(), order); err != nil || p.got.GetOn() != "b" ||
		p.got.GetWake().GetOperation() != "w" {
		t.Errorf("%v, %v", p.got, err)
	}
	for name, node := range s.all {
		if node.checked.Load() != nil || node.woken != nil {
			t.Errorf("node %s was asked", name)
		}
	}
	p.got = nil
	order.On, order.Wake.Stdio = "", "file:///etc/passwd"
	if _, err := svc.Wake(controller.WithPeer(t.Context(), "c"), order); !errdefs.IsPermissionDenied(err) || p.got != nil {
		t.Errorf("output of a node: %v, %v", p.got, err)
	}
	svc.Pull = controller.PullController
	order.On, order.Wake.Stdio = "c", ""
	s.rec.Home = "b"
	if _, err := svc.Wake(controller.WithPeer(t.Context(), "c"), order); !errdefs.IsPermissionDenied(err) || p.got != nil {
		t.Errorf("a node pulls: %v, %v", p.got, err)
	}
	svc.Pull, p.makes = "", false
	if _, err := svc.Wake(t.Context(), order); err != nil || p.got != nil || s.woke() != "c" {
		t.Errorf("a VM whose places others make: %v, woken on %q: %v", p.got, s.woke(), err)
	}
	p.err = errdefs.ErrUnavailable
	if _, err := svc.Wake(t.Context(), order); !errdefs.IsUnavailable(err) {
		t.Errorf("whose places they are is not known: %v", err)
	}
}
