package controller

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// FirstUnused answers the first of some uids for a new record of a VM: it is none of those that other VMs have, and the
// record of none that had it was removed. No node makes a record with such a uid, which is not a UUID alone.
func (s *Service) FirstUnused(ctx context.Context, vm *nodev1.VM, uids []string, others map[string]bool) (string,
	error) {
	for _, uid := range uids {
		if others[uid] {
			continue
		}
		if removed, err := s.removed(ctx, uid); err != nil || !removed {
			return uid, err
		}
	}
	return "", fmt.Errorf("give VM %s/%s one of %d uids: each is or was of another VM: %w", vm.GetNamespace(), vm.GetId(),
		len(uids), errdefs.ErrAlreadyExists)
}

// used answers why a VM does not get a uid; empty: it does. What a VM stores lies below its uid, and who has that uid
// in its record may delete it.
func (s *Service) used(ctx context.Context, vm *nodev1.VM, uid string) (why string, err error) {
	others, err := s.others(ctx, vm, []string{uid})
	if err != nil || len(others) > 0 {
		return "another VM has it", err
	}
	removed, err := s.removed(ctx, uid)
	if removed {
		why = "the record of the VM that had it was removed"
	}
	return why, err
}

// others answers those of some uids that the records of other VMs have. It may read many records.
func (s *Service) others(ctx context.Context, vm *nodev1.VM, uids []string) (all []string, err error) {
	end, err := listing(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	found, err := s.find(ctx, store.Which{UIDs: uids}, false)
	for _, uid := range uids {
		if store.MayHave(found.Unread, uid) {
			return nil, fmt.Errorf("whether another VM has uid %s is not known: %w", uid, store.UnreadOf(found.Unread))
		}
	}
	for _, rec := range found.Records {
		if rec.GetVm().GetNamespace() != vm.GetNamespace() || rec.GetVm().GetId() != vm.GetId() {
			all = append(all, rec.GetUid())
		}
	}
	return all, err
}
