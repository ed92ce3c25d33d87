package node

import (
	"context"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Golden is TemplateMake of an image, as command lines of the release before call it.
func (s *Service) Golden(ctx context.Context, req *nodev1.GoldenRequest) (*nodev1.GoldenResponse, error) {
	made, err := s.TemplateMake(ctx, &nodev1.TemplateMakeRequest{Kind: imageKind, Image: req})
	if err != nil {
		return nil, err
	}
	return &nodev1.GoldenResponse{
		Digest: made.GetTemplate().GetName(), Image: made.GetTemplate().GetImageDigest(), Repository: made.GetRepository(),
		ReadyMs: made.GetReadyMs(), ResidentBytes: made.GetResidentBytes(), PushedBytes: made.GetPushedBytes(),
	}, nil
}

// GoldenList is Templates of images, as command lines of the release before call it.
func (s *Service) GoldenList(ctx context.Context, _ *nodev1.GoldenListRequest) (*nodev1.GoldenListResponse, error) {
	list, err := s.Templates(ctx, &nodev1.TemplatesRequest{Kind: imageKind})
	return &nodev1.GoldenListResponse{Golden: goldenOf(list.GetTemplates())}, err
}

// GoldenDrop is TemplateRemove of images, as command lines of the release before call it.
func (s *Service) GoldenDrop(ctx context.Context, req *nodev1.GoldenDropRequest) (*nodev1.GoldenDropResponse, error) {
	removed, err := s.TemplateRemove(ctx, &nodev1.TemplateRemoveRequest{Kind: imageKind, What: req.GetWhat()})
	if err != nil {
		return nil, err
	}
	return &nodev1.GoldenDropResponse{Dropped: goldenOf(removed.GetRemoved())}, nil
}

func goldenOf(list []*nodev1.TemplateInfo) (all []*nodev1.GoldenInfo) {
	for _, t := range list {
		all = append(all, &nodev1.GoldenInfo{
			Digest: t.GetName(), Tag: t.GetTag(), Image: t.GetImageDigest(), Name: t.GetImage(), Vmm: t.GetVmm(),
			Kernel: t.GetKernel(),
			Memory: t.GetMemory(), Vcpus: t.GetVcpus(), CreatedUnixNano: t.GetCreatedUnixNano(), Bytes: t.GetBytes(),
		})
	}
	return all
}
