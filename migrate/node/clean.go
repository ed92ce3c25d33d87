package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Forget ends the record and, in the same write, notes its snapshots as pending deletions. What
// cannot be deleted now is a warning, for the record is what decides.
func (s *Service) Forget(ctx context.Context, req *nodev1.ForgetRequest) (*nodev1.ForgetResponse, error) {
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	if errdefs.IsNotFound(err) && req.GetForce() && s.Shims != nil {
		return &nodev1.ForgetResponse{}, s.abandon(ctx, req.GetVm(), err)
	}
	if lost := req.GetLostNode(); err == nil && lost != "" && s.Up != nil {
		var up bool
		if up, err = s.Up(ctx, lost); err == nil && up {
			err = fmt.Errorf("remove VM %s: lost_node: node %s is heard: end the VM there, or move it: %w", key(req.GetVm()),
				lost, errdefs.ErrFailedPrecondition)
		}
	}
	if err == nil && req.GetForce() && s.GiveUp != nil {
		err = s.GiveUp(ctx, rec)
	}
	if err != nil {
		return nil, err
	}
	order := &nodev1.RemoveRequest{
		Vm: req.GetVm(), Uid: rec.GetUid(), Force: req.GetForce(), DropSnapshots: !req.GetKeepSnapshots(),
		LostNode: req.GetLostNode(), Payer: s.Config.Node,
	}
	if s.Place != nil {
		order.Repository = s.Place(rec)
	}
	if _, err = s.Records.Remove(ctx, order); err != nil {
		return nil, err
	}
	if req.GetKeepSnapshots() {
		return &nodev1.ForgetResponse{}, nil
	}
	return &nodev1.ForgetResponse{Warning: s.clean(ctx, req.GetVm())}, nil
}

// Drop deletes one snapshot. The record that lists it decides whether it may go.
func (s *Service) Drop(ctx context.Context, req *nodev1.DropRequest) (*nodev1.DropResponse, error) {
	rec, err := s.listing(ctx, req.GetVm(), req.GetDigest())
	if err != nil {
		return nil, err
	}
	if _, err := s.Records.Trim(ctx, &nodev1.TrimRequest{Vm: rec.GetVm(), Uid: rec.GetUid(), Digest: req.GetDigest(),
		Payer: s.Config.Node, Ordered: true}); err != nil {
		return nil, err
	}
	return &nodev1.DropResponse{Warning: s.clean(ctx, rec.GetVm())}, nil
}

// Pin names a snapshot, or says whether it may be deleted, in the record that lists it.
func (s *Service) Pin(ctx context.Context, req *nodev1.PinRequest) (*nodev1.Record, error) {
	if req.GetVm() == nil {
		rec, err := s.listing(ctx, nil, req.GetDigest())
		if err != nil {
			return nil, err
		}
		req.Vm, req.Uid = rec.GetVm(), rec.GetUid()
	}
	return s.Records.Pin(ctx, req)
}

// listing is the record of a VM, or for nil the only one, that lists a snapshot.
func (s *Service) listing(ctx context.Context, vm *nodev1.VM, digest string) (*nodev1.Record, error) {
	records, err := s.recordsOf(ctx, vm)
	if err != nil {
		return nil, err
	}
	found := listing(records, digest)
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no VM has a snapshot %s. To see all: godwit snapshot ls: %w", digest, errdefs.ErrNotFound)
	case 1:
		return found[0].rec, nil
	}
	return nil, ambiguous(found, digest, "--vm")
}

// listed is a snapshot in the record that lists it.
type listed struct {
	rec *nodev1.Record
	ref *nodev1.SnapshotRef
}

// listing finds a snapshot in each record that lists it. A node may have the digest of another one's listed in the
// record of its own VM. So where there are several, only the caller knows which of them is meant.
func listing(records []*nodev1.Record, digest string) (all []listed) {
	for _, rec := range records {
		for _, ref := range rec.GetSnapshots() {
			if ref.GetDigest() == digest {
				all = append(all, listed{rec, ref})
			}
		}
	}
	return all
}

// maxAmbiguous bounds the VMs that an error names: a node makes many records.
const maxAmbiguous = 8

func ambiguous(found []listed, digest, flag string) error {
	var all []string
	for _, l := range found[:min(len(found), maxAmbiguous)] {
		all = append(all, fmt.Sprintf("%s (in %s)", key(l.rec.GetVm()), l.ref.GetRepository()))
	}
	return fmt.Errorf("%d VMs list snapshot %s: %s. To say which one is meant: %s: %w", len(found), digest,
		strings.Join(all, ", "), flag, errdefs.ErrInvalidArgument)
}

// clean does what is pending of a VM's deletions, and says what stays and which node does it.
func (s *Service) clean(ctx context.Context, vm *nodev1.VM) (warning string) {
	if err := s.Engine.Clean(ctx, vm); err != nil {
		return fmt.Sprintf("cleanup pending, it is tried again: %v", err)
	}
	return ""
}

// Prune deletes what neither a record nor the retention rule keeps.
func (s *Service) Prune(ctx context.Context, req *nodev1.PruneRequest) (*nodev1.PruneResponse, error) {
	return s.Engine.Prune(ctx, req)
}

// pendingDeletions lists deletions that are decided and not done.
func (s *Service) pendingDeletions(ctx context.Context) ([]*nodev1.Owed, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	resp, err := s.Records.Owed(ctx, &nodev1.OwedRequest{})
	if errdefs.IsNotImplemented(err) { // a controller of a build before
		return nil, nil
	}
	return resp.GetOwed(), err
}

// pending counts them, also of VMs that have no record any more.
func pending(byName map[string]*nodev1.VMInfo, pendingList []*nodev1.Owed) {
	for _, o := range pendingList {
		info := byName[key(o.GetVm())]
		if info == nil {
			info = &nodev1.VMInfo{Vm: o.GetVm(), Uid: o.GetUid(), Status: "removed"}
			byName[key(o.GetVm())] = info
		}
		info.CleanupPending++
	}
}
