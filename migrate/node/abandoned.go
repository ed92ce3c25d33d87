package node

import (
	"context"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// abandon frees what this node has of a VM without a record that stands still for an operation: by
// itself a node keeps that, since it may be all there is of the VM. missing is why there is no record;
// it stays the answer where there is nothing to free.
func (s *Service) abandon(ctx context.Context, vm *nodev1.VM, missing error) error {
	q, err := s.Shims.Query(ctx, vm)
	if err != nil || q.GetRecord() != "PREPARED" || s.Release == nil {
		return missing
	}
	return s.Release(ctx, vm, &machinev1.ReleaseRequest{Ref: q.GetRef(), Digest: q.GetDigest()})
}
