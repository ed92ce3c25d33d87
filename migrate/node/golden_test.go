package node

import (
	"context"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

type shelf struct {
	list    []*nodev1.GoldenInfo
	dropped []string
	made    *nodev1.GoldenRequest
	err     error
}

func (s *shelf) Make(_ context.Context, req *nodev1.GoldenRequest) (*nodev1.GoldenResponse, error) {
	s.made = req
	return &nodev1.GoldenResponse{}, s.err
}

func (s *shelf) List(context.Context) ([]*nodev1.GoldenInfo, error) { return s.list, s.err }

func (s *shelf) Drop(_ context.Context, digest, _ string) error {
	s.dropped = append(s.dropped, digest)
	return nil
}

func TestGolden(t *testing.T) {
	for _, c := range []struct {
		what string
		want []string
	}{
		{"web:1", []string{"sha256:1", "sha256:2"}},
		{"sha256:image", []string{"sha256:1", "sha256:2"}},
		{"sha256:2", []string{"sha256:2"}},
		{"web", nil},
		{"", nil},
	} {
		s := &shelf{list: []*nodev1.GoldenInfo{
			{Digest: "sha256:1", Image: "sha256:image", Name: "web:1"}, {Digest: "sha256:2", Image: "sha256:image", Name: "web:1"},
			{Digest: "sha256:3", Image: "sha256:other"},
		}}
		_, err := (&Service{Goldens: s}).GoldenDrop(t.Context(), &nodev1.GoldenDropRequest{What: c.what})
		if !slices.Equal(s.dropped, c.want) || (err == nil) != (c.want != nil) || err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("%q: dropped %v, %v", c.what, s.dropped, err)
		}
	}
	s := &shelf{}
	for _, bad := range []*nodev1.GoldenRequest{{Image: "web:1"}, {Namespace: "default"}} {
		if _, err := (&Service{Goldens: s}).Golden(t.Context(), bad); !errdefs.IsInvalidArgument(err) || s.made != nil {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := (&Service{Goldens: s}).Golden(t.Context(), &nodev1.GoldenRequest{Namespace: "default", Image: "web:1"}); err != nil || s.made.GetTimeoutMs() == 0 {
		t.Errorf("%v, %v", s.made, err)
	}
}
