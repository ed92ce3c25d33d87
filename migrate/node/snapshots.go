package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Snapshots lists what the records know; the registry is not asked.
func (s *Service) Snapshots(ctx context.Context, req *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	var records []*nodev1.Record
	if vm := req.GetVm(); vm != nil {
		rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: vm})
		if err != nil {
			return nil, err
		}
		records = []*nodev1.Record{rec}
	} else {
		var err error
		if records, err = s.list(ctx); err != nil {
			return nil, err
		}
	}
	resp := &nodev1.SnapshotsResponse{}
	for _, rec := range records {
		for _, ref := range rec.GetSnapshots() {
			resp.Snapshots = append(resp.Snapshots, &nodev1.SnapshotInfo{
				Vm: rec.GetVm(), Uid: rec.GetUid(), Digest: ref.GetDigest(), Tag: ref.GetTag(), Repository: ref.GetRepository(),
				Generation: ref.GetGeneration(), Operation: ref.GetOperation(), CreatedUnixNano: ref.GetCreatedUnixNano(), Bytes: ref.GetBytes(),
				Owner: rec.GetOwner().GetDigest() == ref.GetDigest(), Spent: slices.Contains(rec.GetSpent(), ref.GetDigest()),
			})
		}
	}
	return resp, nil
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

// repositoryOf a snapshot: as the request says, or the record that knows it.
func (s *Service) repositoryOf(ctx context.Context, req interface {
	GetRepository() string
	GetDigest() string
}) (string, error) {
	if r := req.GetRepository(); r != "" {
		return r, nil
	}
	records, err := s.list(ctx)
	if err != nil {
		return "", err
	}
	r := holder(records, req.GetDigest())
	if r == "" {
		return "", fmt.Errorf("snapshot %s: no record knows it; name its repository: %w", req.GetDigest(), errdefs.ErrNotFound)
	}
	return r, nil
}

func holder(records []*nodev1.Record, digest string) string {
	for _, rec := range records {
		for _, ref := range rec.GetSnapshots() {
			if ref.GetDigest() == digest {
				return ref.GetRepository()
			}
		}
	}
	return ""
}

// Forget ends the record, then the snapshots: a tag that cannot be dropped is a warning,
// for the record is what decides.
func (s *Service) Forget(ctx context.Context, req *nodev1.ForgetRequest) (*nodev1.ForgetResponse, error) {
	rec, err := s.Records.Get(ctx, &nodev1.GetRequest{Vm: req.GetVm()})
	if err != nil {
		return nil, err
	}
	if _, err := s.Records.Remove(ctx, &nodev1.RemoveRequest{Vm: req.GetVm(), Uid: rec.GetUid(), Force: req.GetForce()}); err != nil {
		return nil, err
	}
	resp := &nodev1.ForgetResponse{}
	if req.GetKeepSnapshots() {
		return resp, nil
	}
	for _, ref := range rec.GetSnapshots() {
		if err := s.Snapshot.DropTag(ctx, ref.GetRepository(), ref.GetTag()); err != nil {
			resp.Warning = fmt.Sprintf("snapshot %s stays in %s until its tag %s is deleted: %v", ref.GetDigest(), ref.GetRepository(), ref.GetTag(), err)
		}
	}
	return resp, nil
}
