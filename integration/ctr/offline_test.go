//go:build integration

package ctr

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// The VMM of a VM that asked for the host's network is in no network: not in the node's, and in
// one without a link but its own loopback.
func TestHostNetworkIsOffline(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true})
	n := h.Node(0)
	n.CheckClean(t)
	config, err := os.ReadFile(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/config.toml"
	if err := os.WriteFile(path, append([]byte("host_network = \"loopback\"\n"), config...), 0o600); err != nil {
		t.Fatal(err)
	}
	detached(t, n, "--net-host", "--runtime-config-path", path, images.Busybox, "vm", "sleep", "100000")
	pid, err := n.HostPID(n.Journal("vm").Process.PID)
	if err != nil {
		t.Fatal(err)
	}
	of := func(pid int) string {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	if of(pid) == of(n.PID()) {
		t.Error("the VMM is in the node's network namespace")
	}
	if links, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid)); err != nil ||
		strings.Count(string(links), ":") != 1 {
		t.Errorf("the VMM sees links: %s, %v", links, err)
	}
	ctr(t, n, nil, "task", "delete", "--force", "vm")
	n.Ctr(t, "container", "rm", "vm")
}
