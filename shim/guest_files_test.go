package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
)

// linksGuest takes copies as a guest does that knows hard links or does not.
type linksGuest struct {
	*fakeAgent
	knows bool
	got   []string
}

func (g *linksGuest) Copy(_ context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	for _, f := range r.GetFiles() {
		if f.GetMode()&unix.S_IFMT == unix.S_IFMT && !g.knows {
			return nil, fmt.Errorf("type of mode %o: %w", f.GetMode(), errdefs.ErrNotImplemented)
		}
	}
	for _, f := range r.GetFiles() {
		g.got = append(g.got, fmt.Sprintf("%s %s%s", f.GetPath(), f.GetData(), f.GetLink()))
	}
	return &agentv1.CopyResponse{}, nil
}

// A guest that knows no hard links, as one that an older build has booted, gets each name as a file of its own.
func TestCopyOfHardLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	copies := bundle.Copies{{Source: dir, Destination: "/v", ReadOnly: true}}
	for knows, want := range map[bool][]string{
		true:  {"/v ", "/v/a data", "/v/b /v/a"},
		false: {"/v ", "/v/a data", "/v/b data"},
	} {
		g := &linksGuest{knows: knows}
		if err := copyFiles(t.Context(), g, "c1", copies); err != nil || !slices.Equal(g.got, want) {
			t.Errorf("a guest that knows hard links (%v) got %q, %v, want %q", knows, g.got, err, want)
		}
	}
}
