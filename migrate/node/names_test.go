package node

import (
	"context"
	"maps"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// callers are records that are told names.
type callers struct {
	nodev1.RecordsService
	all   []*nodev1.Record
	told  map[string]string
	fails error
}

func (c *callers) List(_ context.Context, req *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	if req.GetNode() != "a" {
		return nil, errdefs.ErrInvalidArgument
	}
	return &nodev1.ListResponse{Records: c.all}, nil
}

func (c *callers) Name(_ context.Context, req *nodev1.NameRequest) (*nodev1.Record, error) {
	if c.fails != nil {
		return nil, c.fails
	}
	c.told[req.GetVm().GetId()] = req.GetName()
	return &nodev1.Record{}, nil
}

// A node tells the records what its own VMs are called, and gives a container without a name that of the record. What
// it has not seen, what moves and what is another node's it leaves alone; what the records refuse costs nothing.
func TestTellNames(t *testing.T) {
	rec := func(id, node, name string) *nodev1.Record {
		return &nodev1.Record{Vm: &nodev1.VM{Namespace: "default", Id: id}, Owner: &nodev1.Owner{Node: node}, Name: name}
	}
	moving := rec("moving", "a", "old")
	moving.Operation = &nodev1.Operation{Kind: nodev1.Kind_KIND_MIGRATE}
	records := &callers{all: []*nodev1.Record{rec("named", "a", ""), rec("renamed", "a", "old"),
		rec("same", "a", "same-name"),
		rec("arrived", "a", "web"), rec("plain", "a", ""), rec("itself", "a", ""), rec("unseen", "a", "kept"),
		rec("other", "b", "theirs"), moving}}
	labels := map[string]string{"named": "web", "renamed": "new", "same": "same-name", "arrived": "", "plain": "",
		"itself": "itself", "other": "mine", "moving": "new"}
	given := map[string]string{}
	s := &Service{Config: &config.Config{Node: "a"}, Records: records,
		Containers: func(context.Context) (all []*nodev1.VMInfo, err error) {
			for id, name := range labels {
				all = append(all, &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: "default", Id: id}, Name: name})
			}
			return all, nil
		},
		Label: func(_ context.Context, vm *nodev1.VM, name string) error { given[vm.GetId()] = name; return nil }}
	for _, tt := range []struct {
		fails error
		want  map[string]string
		is    bool
	}{
		{nil, map[string]string{"named": "web", "renamed": "new"}, true}, {errdefs.ErrFailedPrecondition, map[string]string{},
			true}, {errdefs.ErrInvalidArgument, map[string]string{}, true},
		{errdefs.ErrNotImplemented, map[string]string{}, true}, {errdefs.ErrUnavailable, map[string]string{}, false},
	} {
		records.told, records.fails = map[string]string{}, tt.fails
		if err := s.TellNames(t.Context()); (err == nil) != tt.is {
			t.Errorf("%v: %v", tt.fails, err)
		}
		if diff := cmp.Diff(tt.want, records.told); diff != "" {
			t.Errorf("%v: told (-want +got):\n%s", tt.fails, diff)
		}
	}
	if diff := cmp.Diff(map[string]string{"arrived": "web"}, maps.Clone(given)); diff != "" {
		t.Errorf("given (-want +got):\n%s", diff)
	}
}
