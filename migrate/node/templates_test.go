package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// shelf is a kind of templates that notes what is done with them.
type shelf struct {
	list []*nodev1.TemplateInfo
	done []string
	made *nodev1.TemplateMakeRequest
	err  error
}

func (s *shelf) Make(_ context.Context, req *nodev1.TemplateMakeRequest) (*nodev1.TemplateMakeResponse, error) {
	s.made = req
	return &nodev1.TemplateMakeResponse{Template: &nodev1.TemplateInfo{Name: "sha256:1", ImageDigest: "sha256:image"},
		ReadyMs: 5, Repository: "r"}, s.err
}

func (s *shelf) List(context.Context) ([]*nodev1.TemplateInfo, error) { return s.list, s.err }

func (s *shelf) Remove(_ context.Context, t *nodev1.TemplateInfo) error {
	s.done = append(s.done, "rm "+t.GetName())
	return nil
}

func (s *shelf) Push(_ context.Context, t *nodev1.TemplateInfo, to string) (*nodev1.TemplatePushed, error) {
	s.done = append(s.done, "push "+t.GetName()+" "+to)
	return &nodev1.TemplatePushed{Template: t, Repository: to}, nil
}

// shelves is a node with two templates of boots, and three golden snapshots.
func shelves(withStore bool) (*Service, *shelf, *shelf) {
	boots := &shelf{list: []*nodev1.TemplateInfo{{Kind: bootKind, Name: "aa"}, {Kind: bootKind, Name: "bb"}}}
	goldens := &shelf{list: []*nodev1.TemplateInfo{
		{Kind: imageKind, Name: "sha256:1", ImageDigest: "sha256:image", Image: "web:1"},
		{Kind: imageKind, Name: "sha256:2", ImageDigest: "sha256:image", Image: "web:1"},
		{Kind: imageKind, Name: "sha256:3", ImageDigest: "sha256:other"},
	}}
	cfg := &config.Config{}
	if withStore {
		cfg.Registry.Repository = "reg/vms"
	}
	return &Service{Config: cfg, Boots: boots, Goldens: goldens}, boots, goldens
}

// What is removed or pushed is what has the name: a key, a digest, or an image by name or digest,
// of the kind that is named. An empty name, and one of the other kind, find nothing.
func TestTemplatesByName(t *testing.T) {
	for _, c := range []struct {
		kind nodev1.TemplateKind
		what string
		want []string
	}{
		{anyKind, "aa", []string{"aa"}}, {bootKind, "bb", []string{"bb"}}, {imageKind, "aa", nil},
		{anyKind, "web:1", []string{"sha256:1", "sha256:2"}}, {imageKind, "sha256:image", []string{"sha256:1", "sha256:2"}},
		{anyKind, "sha256:2", []string{"sha256:2"}}, {bootKind, "sha256:2", nil},
		{anyKind, "web", nil}, {anyKind, "", nil},
	} {
		s, boots, goldens := shelves(true)
		_, err := s.TemplateRemove(t.Context(), &nodev1.TemplateRemoveRequest{Kind: c.kind, What: c.what})
		_, again := s.TemplatePush(t.Context(), &nodev1.TemplatePushRequest{Kind: c.kind, What: c.what, To: "there"})
		var want []string
		for _, w := range c.want {
			want = append(want, "rm "+w)
		}
		for _, w := range c.want {
			want = append(want, "push "+w+" there")
		}
		if got := append(boots.done, goldens.done...); !slices.Equal(got, want) {
			t.Errorf("%v %q: done %v, want %v", c.kind, c.what, got, want)
		}
		for _, err := range []error{err, again} {
			if (err == nil) != (c.want != nil) || err != nil &&
				(!errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "godwit template ls")) {
				t.Errorf("%v %q: %v", c.kind, c.what, err)
			}
		}
	}
}

// Both kinds are listed together. Golden snapshots that cannot be asked for are a warning there.
// They are an error alone, and never "there is none". A node without a store is not asked for
// them.
func TestTemplatesAreListed(t *testing.T) {
	s, _, goldens := shelves(true)
	count := func(kind nodev1.TemplateKind) string {
		resp, err := s.Templates(t.Context(), &nodev1.TemplatesRequest{Kind: kind})
		return fmt.Sprintf("%d %q %v", len(resp.GetTemplates()), resp.GetWarning(), err)
	}
	for kind, want := range map[nodev1.TemplateKind]string{anyKind: `5 "" <nil>`, bootKind: `2 "" <nil>`,
		imageKind: `3 "" <nil>`} {
		if got := count(kind); got != want {
			t.Errorf("%v: %s, want %s", kind, got, want)
		}
	}
	goldens.list, goldens.err = nil, fmt.Errorf("no route: %w", errdefs.ErrUnavailable)
	if got := count(anyKind); !strings.HasPrefix(got, `2 "those of images: no route`) {
		t.Errorf("a store that is away: %s", got)
	}
	if got := count(imageKind); !strings.HasSuffix(got, "no route: unavailable") {
		t.Errorf("a store that is away, alone: %s", got)
	}
	if _, err := s.TemplateRemove(t.Context(), &nodev1.TemplateRemoveRequest{What: "web:1"}); !errdefs.IsUnavailable(err) {
		t.Errorf("a name that may be of an image: %v", err)
	}
	s.Config.Registry.Repository = ""
	if got := count(anyKind); got != `2 "" <nil>` {
		t.Errorf("without a store: %s", got)
	}
	if _, err := s.Templates(t.Context(), &nodev1.TemplatesRequest{Kind: 9}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a kind that there is not: %v", err)
	}
}

// What is made goes to where its kind is made; what it needs is asked for by name.
func TestTemplateIsMade(t *testing.T) {
	s, boots, goldens := shelves(true)
	for _, bad := range []*nodev1.TemplateMakeRequest{
		{}, {Kind: imageKind}, {Kind: imageKind, Image: &nodev1.GoldenRequest{Image: "web:1"}},
		{Kind: imageKind, Image: &nodev1.GoldenRequest{Namespace: "default"}},
	} {
		if _, err := s.TemplateMake(t.Context(), bad); !errdefs.IsInvalidArgument(err) || goldens.made != nil ||
			boots.made != nil {
			t.Errorf("%v: %v", bad, err)
		}
	}
	image := &nodev1.TemplateMakeRequest{Kind: imageKind, Image: &nodev1.GoldenRequest{Namespace: "default",
		Image: "web:1"}}
	if _, err := s.TemplateMake(t.Context(), image); err != nil || goldens.made.GetImage().GetTimeoutMs() == 0 {
		t.Errorf("%v, %v", goldens.made, err)
	}
	if _, err := s.TemplateMake(t.Context(), &nodev1.TemplateMakeRequest{Kind: bootKind}); err != nil ||
		boots.made == nil {
		t.Errorf("%v, %v", boots.made, err)
	}
	boots.err = errdefs.ErrNotImplemented
	if _, err := s.TemplateMake(t.Context(), &nodev1.TemplateMakeRequest{Kind: bootKind}); !errors.Is(err,
		errdefs.ErrNotImplemented) {
		t.Errorf("what its kind refuses: %v", err)
	}
}

// Calls of command lines of the release before do what they did, about images alone.
func TestGoldenOfTheReleaseBefore(t *testing.T) {
	s, boots, goldens := shelves(true)
	list, err := s.GoldenList(t.Context(), &nodev1.GoldenListRequest{})
	if err != nil || len(list.GetGolden()) != 3 || list.GetGolden()[0].GetDigest() != "sha256:1" ||
		list.GetGolden()[0].GetName() != "web:1" || list.GetGolden()[0].GetImage() != "sha256:image" {
		t.Errorf("list: %v, %v", list, err)
	}
	made, err := s.Golden(t.Context(), &nodev1.GoldenRequest{Namespace: "default", Image: "web:1"})
	if err != nil || made.GetDigest() != "sha256:1" || made.GetImage() != "sha256:image" || made.GetReadyMs() != 5 ||
		made.GetRepository() != "r" {
		t.Errorf("made: %v, %v", made, err)
	}
	dropped, err := s.GoldenDrop(t.Context(), &nodev1.GoldenDropRequest{What: "web:1"})
	if err != nil || len(dropped.GetDropped()) != 2 ||
		!slices.Equal(goldens.done, []string{"rm sha256:1", "rm sha256:2"}) {
		t.Errorf("dropped: %v, %v", dropped, err)
	}
	if _, err := s.GoldenDrop(t.Context(), &nodev1.GoldenDropRequest{What: "aa"}); !errdefs.IsNotFound(err) ||
		boots.done != nil {
		t.Errorf("the name of a boot's template: %v", err)
	}
}
