package tasks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// An interface whose MTU is smaller than the guest's, or one too few, is found as the network is made, before
// anything is committed. Undo leaves nothing.
func TestConnectWantsTheMTU(t *testing.T) {
	vm := &nodev1.VM{Namespace: "a", Id: "b"}
	n, f := newFake(t)
	f.mtu = 1400
	err := n.connect(t.Context(), vm, nics)
	if !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "the guest's MTU is 1500, interface eth0 has 1400") {
		t.Errorf("a smaller MTU: %v", err)
	}
	if err := n.undo(t.Context(), vm); err != nil || len(n.made()) > 0 || len(f.held) > 0 {
		t.Errorf("undo: %v; left %v, leases %v", err, n.made(), f.held)
	}
	f.mtu = 9000
	if err := n.connect(t.Context(), vm, nics); err != nil {
		t.Errorf("a larger MTU: %v", err)
	}
	if err := n.connect(t.Context(), vm, append(nics, spec.NIC{ID: "net1"})); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one interface for two NICs: %v", err)
	}
}

// What CNI's own configuration says is known before the source of a move is touched.
// The files are read anew each time.
func TestNetworkObstacle(t *testing.T) {
	dir := t.TempDir()
	n := &networks{plugins: func() (leases, error) { return cni(config.CNI{ConfDir: dir, BinDir: dir}) }}
	ask := func() string {
		t.Helper()
		why, err := n.obstacle(nics[0])
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	if why := ask(); !strings.Contains(why, "cni.conf_dir") {
		t.Errorf("no configuration: %q", why)
	}
	for _, c := range []struct{ plugins, want string }{
		{`{"type": "bridge"}`, ""},
		{`{"type": "bridge", "mtu": 0}`, ""},
		{`{"type": "bridge", "mtu": 1500}`, ""},
		{`{"type": "bridge", "mtu": 9000}`, ""},
		{`{"type": "bridge", "mtu": 1400}`,
			`the guest's MTU is 1500, CNI network "pods" gives 1400 (mtu of its plugin bridge, in cni.conf_dir)`},
		{`{"type": "bridge", "mtu": 1400}, {"type": "firewall"}`, "gives 1400"},
		{`{"type": "bridge", "mtu": 1400}, {"type": "tuning", "mtu": 1500}`, ""},
		{`{"type": "bridge", "mtu": 1500}, {"type": "tuning", "mtu": 1300}`, "gives 1300 (mtu of its plugin tuning"},
		{`{"type": "strange", "mtu": "auto"}`, ""},
	} {
		data := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + c.plugins + `]}`
		if err := os.WriteFile(filepath.Join(dir, "10-pods.conflist"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if why := ask(); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", c.plugins, why, c.want)
		}
	}
	n.plugins = func() (leases, error) { return nil, errors.New("no") }
	if why, err := n.obstacle(nics[0]); err == nil {
		t.Errorf("configuration that cannot be read: %q", why)
	}
}
