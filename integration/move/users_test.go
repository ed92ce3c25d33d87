//go:build integration

package move

import (
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// mapped are flags of ctr for a VM with a user namespace. With mount, the guest maps the ids of the image's files.
// Without it, containerd has changed the owners of the files.
func mapped(mount bool) []string {
	flags := []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}
	if mount {
		flags = append(flags, "--remap-labels")
	}
	return flags
}

// hasUsers wants an exec on a node to see the ids of the user namespace that the VM was made with, also in new files.
func hasUsers(t *testing.T, n *harness.Node, when string) {
	t.Helper()
	const script = `tr -s ' ' </proc/self/uid_map; echo x >/new && chown 7:8 /new && stat -c %u:%g / /bin/busybox /new`
	const want = "0 100000 65536\n0:0\n0:0\n7:8"
	out, err := n.RunCtr(t.Context(), "task", "exec", "--exec-id", "users-"+when, vm, "sh", "-c", script)
	if err != nil || strings.TrimSpace(out) != want {
		t.Errorf("%s: with a user namespace an exec on node %s sees\n%s\nwanted\n%s\n%v", when, n.Name, out, want, err)
	}
}
