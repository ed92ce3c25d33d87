package node

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// deleter is an engine of which only deletions are asked.
type deleter struct {
	Engine
	asked []*nodev1.DeleteRequest
}

func (d *deleter) Delete(_ context.Context, req *nodev1.DeleteRequest) (*nodev1.Record, error) {
	d.asked = append(d.asked, req)
	return &nodev1.Record{Vm: req.GetVm()}, nil
}

func (d *deleter) Enroll(context.Context, *nodev1.VM, bool) error { return nil }

// A node without a store refuses the order before anything is written; one that stands is
// called off there all the same, and shown.
func TestDeleteNeedsAStore(t *testing.T) {
	d := &deleter{}
	stands := &nodev1.Record{Vm: vm("x"), Owner: &nodev1.Owner{Node: "n"}, Deletion: &nodev1.Deletion{Id: "d", Tries: 2}}
	s := &Service{Config: &config.Config{Node: "n"}, Engine: d, Shims: shims{},
		Records: &records{list: []*nodev1.Record{stands}}}
	order := &nodev1.DeleteRequest{Vm: vm("x"), Deletion: &nodev1.Deletion{Id: "d"}}
	if _, err := s.Delete(t.Context(), order); !errdefs.IsFailedPrecondition(err) || len(d.asked) != 0 {
		t.Errorf("without a store: %v, asked %v", err, d.asked)
	}
	if _, err := s.Delete(t.Context(), &nodev1.DeleteRequest{Vm: vm("x"), Cancel: true}); err != nil || len(d.asked) != 1 {
		t.Errorf("called off: %v, asked %v", err, d.asked)
	}
	s.Config.Registry.Layout = "/layout"
	if _, err := s.Delete(t.Context(), order); err != nil || len(d.asked) != 2 {
		t.Errorf("with a store: %v, asked %v", err, d.asked)
	}
	if rec, err := s.Recorded(t.Context(), &nodev1.GetRequest{Vm: vm("x")}); err != nil ||
		rec.GetDeletion().GetTries() != 2 {
		t.Errorf("%v, %v", rec, err)
	}
	if list, err := s.VMs(t.Context(), &nodev1.VMsRequest{}); err != nil || len(list.GetVms()) != 1 ||
		list.GetVms()[0].GetDeletion().GetTries() != 2 {
		t.Errorf("%v, %v", list, err)
	}
}
