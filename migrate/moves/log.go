package moves

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Log implements nodev1.MovesService: the node that has a VM reads what the VM has written where it ran before. That
// node gives what is of the VM with the record's UID, and not of another one of that name.
func (s *Service) Log(ctx context.Context, req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	if err != nil {
		return nil, err
	}
	call := "read the log of VM " + key(req.GetVm())
	if err := authorize(ctx, call, controller.Homes(rec)...); err != nil {
		return nil, err
	}
	node := req.GetNode()
	if nodes, _ := record.RanOn(rec); !slices.Contains(nodes, node) {
		return nil, fmt.Errorf("%s on node %q: nobody wrote down that it ran there: %w", call, node, errdefs.ErrNotFound)
	}
	to, err := s.Peer(node)
	if err != nil {
		return nil, err
	}
	return to.Log(controller.WithoutPeer(ctx), &nodev1.LogRequest{Vm: req.GetVm(), Node: node, Uid: rec.GetUid(),
		Tail: req.Tail, From: req.GetFrom()})
}
