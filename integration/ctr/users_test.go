//go:build integration

package ctr

import (
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// testUsers: ctr's two ways to a user namespace: containerd gives the files of a snapshot their owners, or asks the
// runtime to map them.
func testUsers(t *testing.T, n *harness.Node) {
	t.Helper()
	const text = `tr -s ' ' </proc/self/uid_map; stat -c %u:%g / /bin/busybox /tmp; echo x >/tmp/x && stat -c %u /tmp/x`
	maps := []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}
	var both []*command
	for id, more := range map[string][]string{"chowned": nil, "mapped": {"--remap-labels"}} {
		both = append(both, start(t, n, nil, script(id, text, append(more, maps...)...)...))
	}
	for _, c := range both {
		if r := c.wait(t); r.code != 0 || strings.TrimSpace(r.out) != "0 100000 65536\n0:0\n0:0\n0:0\n0" {
			t.Errorf("%+v", r)
		}
	}
}
