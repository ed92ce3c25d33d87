package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Snapshots lists what the records know; the registry is not asked.
func (s *Service) Snapshots(ctx context.Context, req *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	records, unread, err := s.readRecordsOf(ctx, req.GetVm())
	if err != nil {
		return nil, err
	}
	resp := &nodev1.SnapshotsResponse{}
	if unread != nil {
		resp.Warning = "records: " + unread.Error()
	}
	for _, rec := range records {
		for _, ref := range rec.GetSnapshots() {
			resp.Snapshots = append(resp.Snapshots, &nodev1.SnapshotInfo{
				Vm: rec.GetVm(), Uid: rec.GetUid(), Digest: ref.GetDigest(), Tag: ref.GetTag(), Repository: ref.GetRepository(),
				Generation: ref.GetGeneration(), Operation: ref.GetOperation(), CreatedUnixNano: ref.GetCreatedUnixNano(),
				Bytes: ref.GetBytes(),
				Owner: rec.GetOwner().GetDigest() == ref.GetDigest(), Spent: slices.Contains(rec.GetSpent(), ref.GetDigest()),
				Checkpoint: ref.GetCheckpoint(), Use: transition.InUse(rec, ref.GetDigest()),
				Name: ref.GetName(), Pinned: ref.GetPinned(), Manual: ref.GetManual(), Parent: ref.GetParent(),
				NewBytes: ref.GetNewBytes(), Node: ref.GetNode(), Base: rec.GetBase() == ref.GetDigest(),
				RamBytes: ref.GetRamBytes(),
			})
		}
	}
	pendingList, err := s.pendingDeletions(ctx)
	if err != nil {
		resp.Warning = strings.TrimPrefix(resp.Warning+"; pending deletions: "+err.Error(), "; ")
	}
	for _, o := range pendingList {
		if vm := req.GetVm(); vm == nil || key(vm) == key(o.GetVm()) {
			resp.Snapshots = append(resp.Snapshots, pendingInfo(o))
		}
	}
	return resp, nil
}

// recordsOf a VM, or of all: one that cannot be read is an error.
func (s *Service) recordsOf(ctx context.Context, vm *nodev1.VM) ([]*nodev1.Record, error) {
	records, unread, err := s.readRecordsOf(ctx, vm)
	return records, cmp.Or(err, unread)
}

// readRecordsOf a VM, or of all that can be read. unread says which cannot.
func (s *Service) readRecordsOf(ctx context.Context, vm *nodev1.VM) (records []*nodev1.Record, unread, err error) {
	if vm == nil {
		return s.listRead(ctx)
	}
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
	if err != nil {
		return nil, nil, err
	}
	return []*nodev1.Record{rec}, nil, nil
}

func pendingInfo(o *nodev1.Owed) *nodev1.SnapshotInfo {
	ref := o.GetSnapshot()
	return &nodev1.SnapshotInfo{
		Vm: o.GetVm(), Uid: o.GetUid(), Digest: ref.GetDigest(), Tag: ref.GetTag(), Repository: ref.GetRepository(),
		Generation: ref.GetGeneration(), Operation: ref.GetOperation(), CreatedUnixNano: ref.GetCreatedUnixNano(),
		Bytes: ref.GetBytes(), Owed: true,
	}
}

// Inspect answers manifest and configuration of one snapshot.
func (s *Service) Inspect(ctx context.Context, req *nodev1.InspectRequest) (*nodev1.InspectResponse, error) {
	repository, err := s.repositoryOf(ctx, req)
	if err != nil {
		return nil, err
	}
	manifest, config, err := s.Snapshot.Inspect(ctx, repository, req.GetDigest())
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(map[string]json.RawMessage{"manifest": manifest, "config": config}, "", "  ")
	return &nodev1.InspectResponse{Json: data}, err
}

// Verify has a whole snapshot read.
func (s *Service) Verify(ctx context.Context, req *nodev1.VerifyRequest) (*nodev1.VerifyResponse, error) {
	repository, err := s.repositoryOf(ctx, req)
	if err != nil {
		return nil, err
	}
	return s.Snapshot.Verify(ctx, repository, req.GetDigest())
}

// repositoryOf a snapshot: as the request says, or the records that list it.
func (s *Service) repositoryOf(ctx context.Context, req interface {
	GetRepository() string
	GetDigest() string
}) (string, error) {
	if r := req.GetRepository(); r != "" {
		return r, nil
	}
	records, unread, err := s.listRead(ctx)
	if err != nil {
		return "", err
	}
	found := listing(records, req.GetDigest())
	if len(found) == 0 && unread != nil { // it may be in one of these
		return "", unread
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no VM has a snapshot %s. To look elsewhere: --repository: %w", req.GetDigest(),
			errdefs.ErrNotFound)
	}
	for _, l := range found {
		if l.ref.GetRepository() != found[0].ref.GetRepository() {
			return "", ambiguous(found, req.GetDigest(), "--repository")
		}
	}
	return found[0].ref.GetRepository(), nil
}

// Diff compares two snapshots.
func (s *Service) Diff(ctx context.Context, req *nodev1.DiffRequest) (_ *nodev1.DiffResponse, err error) {
	if req.FromRepository, err = s.repositoryOf(ctx, &nodev1.VerifyRequest{Digest: req.GetFrom(),
		Repository: req.GetFromRepository()}); err != nil {
		return nil, err
	}
	if req.ToRepository, err = s.repositoryOf(ctx, &nodev1.VerifyRequest{Digest: req.GetTo(),
		Repository: req.GetToRepository()}); err != nil {
		return nil, err
	}
	return s.Snapshot.Diff(ctx, req)
}

// Copy brings a snapshot elsewhere.
func (s *Service) Copy(ctx context.Context, req *nodev1.CopyRequest) (_ *nodev1.CopyResponse, err error) {
	if req.Repository, err = s.repositoryOf(ctx, req); err != nil {
		return nil, err
	}
	return s.Snapshot.Copy(ctx, req)
}
