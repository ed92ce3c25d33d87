package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Golden is where golden snapshots are made and lie.
type Golden interface {
	Make(ctx context.Context, req *nodev1.GoldenRequest) (*nodev1.GoldenResponse, error)
	List(ctx context.Context) ([]*nodev1.GoldenInfo, error)
	Drop(ctx context.Context, digest, tag string) error
}

// defaultReady bounds the boot of an image, and its way to being ready.
const defaultReady = 5 * 60 * 1000

// Golden makes a golden snapshot of an image.
func (s *Service) Golden(ctx context.Context, req *nodev1.GoldenRequest) (*nodev1.GoldenResponse, error) {
	if req.GetImage() == "" || req.GetNamespace() == "" {
		return nil, fmt.Errorf("golden snapshot: image and namespace are needed: %w", errdefs.ErrInvalidArgument)
	}
	if req.TimeoutMs == 0 {
		req.TimeoutMs = defaultReady
	}
	resp, err := s.Goldens.Make(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("golden snapshot of %s: %w", req.GetImage(), err)
	}
	return resp, nil
}

// GoldenList asks the store.
func (s *Service) GoldenList(ctx context.Context, _ *nodev1.GoldenListRequest) (*nodev1.GoldenListResponse, error) {
	list, err := s.Goldens.List(ctx)
	return &nodev1.GoldenListResponse{Golden: list}, err
}

// GoldenDrop deletes those of an image, by name or digest, or one by its own digest.
func (s *Service) GoldenDrop(ctx context.Context, req *nodev1.GoldenDropRequest) (*nodev1.GoldenDropResponse, error) {
	list, err := s.Goldens.List(ctx)
	if err != nil {
		return nil, err
	}
	resp := &nodev1.GoldenDropResponse{}
	for _, g := range list {
		if what := req.GetWhat(); what == "" || what != g.GetDigest() && what != g.GetImage() && what != g.GetName() {
			continue
		}
		if err := s.Goldens.Drop(ctx, g.GetDigest(), g.GetTag()); err != nil {
			return nil, fmt.Errorf("golden snapshot %s: %w", g.GetDigest(), err)
		}
		resp.Dropped = append(resp.Dropped, g)
	}
	if len(resp.Dropped) == 0 {
		return nil, fmt.Errorf("golden snapshot %s: there is none of that digest, image or name: %w", strings.TrimSpace(req.GetWhat()), errdefs.ErrNotFound)
	}
	return resp, nil
}
