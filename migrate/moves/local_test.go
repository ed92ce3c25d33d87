package moves

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ordered is a controller, or this node's own service.
type ordered struct {
	nodev1.MovesService
	got string // VM of the last order
	err error
}

func (o *ordered) wake(req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	o.got = req.GetVm().GetId()
	return &nodev1.StatusResponse{}, o.err
}

func (o *ordered) Wake(_ context.Context, order *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	return o.wake(order.GetWake())
}

type here struct{ *ordered }

func (h here) Wake(_ context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return h.wake(req)
}

// A wake that names this node is its own, any other is the controller's. A controller of a build before has no
// choice. What it does not know wakes here, unless another node is named.
func TestWhoWakes(t *testing.T) {
	for name, tt := range map[string]struct {
		on        string
		says      error
		far, near string
		is        func(error) bool
	}{
		"named here":               {"a", errors.New("not asked"), "", "web", nil},
		"named there":              {"b", nil, "web", "", nil},
		"nowhere":                  {"", nil, "web", "", nil},
		"it fits none":             {"", errdefs.ErrResourceExhausted, "web", "", errdefs.IsResourceExhausted},
		"an old controller":        {"", errdefs.ErrNotImplemented, "web", "web", nil},
		"an old controller, named": {"b", errdefs.ErrNotImplemented, "web", "", errdefs.IsNotImplemented},
	} {
		far, near := &ordered{err: tt.says}, &ordered{}
		m := &Local{MovesService: far, Self: "a", Node: here{near}}
		_, err := m.Wake(t.Context(), &nodev1.WakeOrder{On: tt.on, Wake: &nodev1.WakeRequest{Vm: &nodev1.VM{Id: "web"}}})
		if far.got != tt.far || near.got != tt.near || tt.is == nil && err != nil || tt.is != nil && !tt.is(err) {
			t.Errorf("%s: the controller got %q, this node %q; %v", name, far.got, near.got, err)
		}
	}
}
