package registry

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A snapshot in another node's own store is refused with the node's name and what to do. Any other one is left
// to the store's answer.
func TestElsewhere(t *testing.T) {
	dir := t.TempDir()
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	own := config.Registry{Layout: dir, Own: true}
	cfg := config.Default()
	cfg.Node, cfg.Registry, cfg.StateDir = "b", own, t.TempDir()
	here, _ := tagged(t, New(cfg), store.LayoutPrefix+dir+"/u")
	const none = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	for name, c := range map[string]struct {
		registry         config.Registry
		repository, node string
		digest           string
		refused          bool
	}{
		"another's":            {own, store.LayoutPrefix + dir + "/v", "a", none, true},
		"another's, of mine":   {own, store.LayoutPrefix + dir + "/u", "a", none, true},
		"of a registry's node": {config.Registry{Repository: "r/x"}, store.LayoutPrefix + dir + "/v", "a", none, true},
		"seen here":            {own, store.LayoutPrefix + dir + "/u", "a", here, false},
		"mine":                 {own, store.LayoutPrefix + dir + "/v", "b", none, false},
		"of an old build":      {own, store.LayoutPrefix + dir + "/v", "", none, false},
		"shared":               {config.Registry{Layout: dir}, store.LayoutPrefix + dir + "/v", "a", none, false},
		"a registry":           {own, "registry.example/x", "a", none, false},
	} {
		cfg.Registry = c.registry
		ref := &nodev1.SnapshotRef{Repository: c.repository, Node: c.node, Digest: c.digest}
		err := New(cfg).Elsewhere(t.Context(), vm, ref)
		if (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		if c.refused && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "on node a") ||
			!strings.Contains(err.Error(), "registry.repository")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
