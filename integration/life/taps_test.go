//go:build integration

package life

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/integration/harness"
)

// namespaceOfTaps is one that no VM lives in.
const namespaceOfTaps = "orphans"

// makeTaps makes a tap of this node, one of another node, and one without an owner.
func makeTaps(t *testing.T, n *harness.Node) {
	t.Helper()
	cfg, err := config.Load(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	other := *cfg
	other.StateDir = filepath.Join(cfg.StateDir, "other")
	run := func(args ...string) {
		t.Helper()
		if _, err := n.Run(t.Context(), "ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	run("netns", "add", namespaceOfTaps)
	t.Cleanup(func() {
		if _, err := n.Run(context.WithoutCancel(t.Context()), "ip", "netns", "del", namespaceOfTaps); err != nil {
			t.Error(err)
		}
	})
	for tap, alias := range map[string]string{
		"mine":   "godwit/default/gone/n" + cfg.NodeID() + "/g1/a1",
		"theirs": "godwit/default/gone/n" + other.NodeID() + "/g1/a1",
		"old":    "godwit/default/gone/g1/a1", "foreign": "somebody's",
	} {
		run("-n", namespaceOfTaps, "tuntap", "add", "dev", tap, "mode", "tap")
		run("-n", namespaceOfTaps, "link", "set", tap, "alias", alias)
	}
}

// testTaps: godwitd has deleted the tap that no VM of this node stands for, and no other.
func testTaps(t *testing.T, n *harness.Node) {
	err := harness.Poll(t.Context(), time.Minute, func(ctx context.Context) error {
		links, err := n.Run(ctx, "ip", "-n", namespaceOfTaps, "-brief", "link")
		if err != nil {
			return err
		}
		if strings.Contains(links, "mine") {
			return fmt.Errorf("the orphan is there: %s", links)
		}
		for _, tap := range []string{"theirs", "old", "foreign"} {
			if !strings.Contains(links, tap) {
				t.Errorf("tap %s is gone: %s", tap, links)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
