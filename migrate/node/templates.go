package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/nearest"
)

// Templates is where those of one kind are made and lie.
type Templates interface {
	List(ctx context.Context) ([]*nodev1.TemplateInfo, error)
	Make(ctx context.Context, req *nodev1.TemplateMakeRequest) (*nodev1.TemplateMakeResponse, error)
	Remove(ctx context.Context, t *nodev1.TemplateInfo) error
	Push(ctx context.Context, t *nodev1.TemplateInfo, to string) (*nodev1.TemplatePushed, error)
}

const (
	anyKind   = nodev1.TemplateKind_TEMPLATE_KIND_UNSPECIFIED
	bootKind  = nodev1.TemplateKind_TEMPLATE_KIND_BOOT
	imageKind = nodev1.TemplateKind_TEMPLATE_KIND_IMAGE
)

// ofKind answers where those of a kind are.
func (s *Service) ofKind(kind nodev1.TemplateKind) (Templates, error) {
	switch {
	case kind == bootKind && s.Boots != nil:
		return s.Boots, nil
	case kind == imageKind && s.Goldens != nil:
		return s.Goldens, nil
	}
	return nil, fmt.Errorf("kind: %s is not one of boot, image: %w", kind, errdefs.ErrInvalidArgument)
}

// Templates lists those of a kind, or of both. Of both, one that cannot be asked is a warning.
func (s *Service) Templates(ctx context.Context, req *nodev1.TemplatesRequest) (*nodev1.TemplatesResponse, error) {
	resp := &nodev1.TemplatesResponse{}
	if req.GetKind() != anyKind {
		of, err := s.ofKind(req.GetKind())
		if err != nil {
			return nil, err
		}
		resp.Templates, err = of.List(ctx)
		return resp, err
	}
	var err error
	if resp.Templates, err = s.Boots.List(ctx); err != nil || !s.Config.HasStore() {
		return resp, err
	}
	goldens, err := s.Goldens.List(ctx)
	if err != nil {
		resp.Warning = "those of images: " + err.Error()
	}
	resp.Templates = append(resp.Templates, goldens...)
	return resp, nil
}

// defaultReady bounds the boot of an image, and its way to being ready.
const defaultReady = 5 * 60 * 1000

// TemplateMake makes one.
func (s *Service) TemplateMake(ctx context.Context, req *nodev1.TemplateMakeRequest) (*nodev1.TemplateMakeResponse,
	error) {
	of, err := s.ofKind(req.GetKind())
	if err != nil {
		return nil, err
	}
	name := "template of a boot"
	if image := req.GetImage(); req.GetKind() == imageKind {
		if image.GetImage() == "" || image.GetNamespace() == "" {
			return nil, fmt.Errorf("golden snapshot: image and namespace are needed: %w", errdefs.ErrInvalidArgument)
		}
		if image.TimeoutMs == 0 {
			image.TimeoutMs = defaultReady
		}
		name = "golden snapshot of " + image.GetImage()
	}
	resp, err := of.Make(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return resp, nil
}

// TemplateRemove deletes those of a name: of a boot the key, of an image its name, its digest,
// or the digest of the golden snapshot.
func (s *Service) TemplateRemove(ctx context.Context,
	req *nodev1.TemplateRemoveRequest) (*nodev1.TemplateRemoveResponse, error) {
	resp := &nodev1.TemplateRemoveResponse{}
	err := s.each(ctx, req.GetKind(), req.GetWhat(), func(of Templates, t *nodev1.TemplateInfo) error {
		if err := of.Remove(ctx, t); err != nil {
			return err
		}
		resp.Removed = append(resp.Removed, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// TemplatePush brings those of a name elsewhere.
func (s *Service) TemplatePush(ctx context.Context, req *nodev1.TemplatePushRequest) (*nodev1.TemplatePushResponse,
	error) {
	resp := &nodev1.TemplatePushResponse{}
	err := s.each(ctx, req.GetKind(), req.GetWhat(), func(of Templates, t *nodev1.TemplateInfo) error {
		pushed, err := of.Push(ctx, t, req.GetTo())
		if err != nil {
			return err
		}
		resp.Pushed = append(resp.Pushed, pushed)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// each does something with every template of a name. A name is of one kind only. So a kind that
// cannot be asked is an error where the other kind has none of that name, and is never absence.
func (s *Service) each(ctx context.Context, kind nodev1.TemplateKind, what string,
	do func(Templates, *nodev1.TemplateInfo) error) error {
	kinds := []nodev1.TemplateKind{kind}
	if kind == anyKind {
		kinds[0] = bootKind
		if s.Config.HasStore() {
			kinds = append(kinds, imageKind)
		}
	}
	found, known := 0, []string{}
	var unknown error
	for _, k := range kinds {
		of, err := s.ofKind(k)
		if err != nil {
			return err
		}
		list, err := of.List(ctx)
		if err != nil {
			unknown = errors.Join(unknown, err)
			continue
		}
		for _, t := range list {
			known = append(known, t.GetName(), t.GetImage())
			if what == "" || what != t.GetName() && what != t.GetImage() && what != t.GetImageDigest() {
				continue
			}
			found++
			if err := do(of, t); err != nil {
				return fmt.Errorf("template %s: %w", t.GetName(), err)
			}
		}
	}
	if found > 0 {
		return nil
	}
	if unknown != nil {
		return fmt.Errorf("template %s: %w", strings.TrimSpace(what), unknown)
	}
	meant := nearest.Question(what, slices.DeleteFunc(known, func(s string) bool { return s == "" }))
	return fmt.Errorf("there is no template of the name, digest or image %q. %sTo see all: godwit template ls: %w",
		strings.TrimSpace(what), strings.TrimLeft(meant+" ", " "), errdefs.ErrNotFound)
}
