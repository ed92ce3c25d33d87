package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// FirstUnused answers the first of some uids for a new record of a VM: no other VM has it, and the record of none that
// had it was removed.
func (s *Service) FirstUnused(ctx context.Context, vm *nodev1.VM, uids []string) (string, error) {
	why, err := s.used(ctx, vm, uids)
	if err != nil {
		return "", err
	}
	for _, uid := range uids {
		if why[uid] == "" {
			return uid, nil
		}
	}
	return "", fmt.Errorf("give VM %s/%s one of %d uids: each is or was of another VM: %w", vm.GetNamespace(), vm.GetId(),
		len(uids), errdefs.ErrAlreadyExists)
}

// used answers, by uid, why a VM does not get it. What a VM stores lies below its uid, and who has that uid in its
// record may delete it.
func (s *Service) used(ctx context.Context, vm *nodev1.VM, uids []string) (map[string]string, error) {
	why := map[string]string{}
	found, err := s.find(ctx, store.Which{UIDs: uids}, false)
	if err != nil {
		return nil, err
	}
	for _, rec := range found.Records {
		if rec.GetVm().GetNamespace() != vm.GetNamespace() || rec.GetVm().GetId() != vm.GetId() {
			why[rec.GetUid()] = "another VM has it"
		}
	}
	if notes, ok := s.store.(store.Notes); ok {
		all, err := notes.Notes(ctx, kindRemoved, "")
		if err != nil {
			return nil, fmt.Errorf("look whether the record of VM uid %s was removed: %w", uids[0], err)
		}
		for _, n := range all {
			if slices.Contains(uids, n.Key) {
				why[n.Key] = "the record of the VM that had it was removed"
			}
		}
	}
	return why, nil
}
