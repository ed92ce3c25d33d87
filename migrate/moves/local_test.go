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

func (o *ordered) Migrate(_ context.Context, req *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	if o.err != nil {
		return nil, o.err
	}
	return o.wake(&nodev1.WakeRequest{Vm: req.GetVm()})
}

type here struct{ *ordered }

func (h here) Enroll(_ context.Context, vm *nodev1.VM) error {
	h.got = vm.GetId()
	return h.err
}

// A move of a VM that the controller does not know is ordered once more when this node has made its record. Any other
// answer is the controller's last word, and so is this node's refusal.
func TestMoveOfAVMWithoutARecord(t *testing.T) {
	for name, c := range map[string]struct {
		far, near error
		asked     bool
		is        func(error) bool
	}{
		"not known":           {errdefs.ErrNotFound, nil, true, errdefs.IsNotFound},
		"not known, nor here": {errdefs.ErrNotFound, errdefs.ErrFailedPrecondition, true, errdefs.IsFailedPrecondition},
		"known":               {nil, errdefs.ErrInternal, false, func(err error) bool { return err == nil }},
		"no answer":           {errdefs.ErrUnavailable, nil, false, errdefs.IsUnavailable},
	} {
		near := &ordered{err: c.near}
		m := &Local{MovesService: &ordered{err: c.far}, Self: "a", Node: here{near}}
		_, err := m.Migrate(t.Context(), &nodev1.MigrateRequest{Vm: &nodev1.VM{Id: "web"}})
		if !c.is(err) || (near.got != "") != c.asked {
			t.Errorf("%s: %v, this node was asked: %q", name, err, near.got)
		}
	}
}

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
