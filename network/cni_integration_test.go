//go:build integration

package network

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// cni runs one plugin in the namespace that plays the node.
func cni(t *testing.T, node, command, ns, plugin, conf string) []byte {
	t.Helper()
	bin, err := filepath.Abs("../bin/tools/cni")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net="+node, "--", filepath.Join(bin, plugin))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=vm1", "CNI_NETNS="+ns,
		"CNI_IFNAME=eth0", "CNI_PATH="+bin)
	cmd.Stdin = strings.NewReader(conf)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", plugin, command, err, out)
	}
	return out
}

// What a real plugin made is what the guest gets, and the plugin finds it again.
func TestCNI(t *testing.T) {
	for _, plugin := range []string{"bridge", "ptp"} {
		t.Run(plugin, func(t *testing.T) {
			node, ns := newNS(t, "node"), newNS(t, "task")
			conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":%q,"bridge":"cni0","isGateway":true,
				"mtu":1450,"ipam":{"type":"host-local","dataDir":%q,
				"ranges":[[{"subnet":"10.66.0.0/16"}],[{"subnet":"fd66::/64"}]],
				"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`, plugin, t.TempDir())
			var result struct {
				IPs []struct {
					Address netip.Prefix
					Gateway netip.Addr
				}
				Interfaces []struct{ Mac, Sandbox string }
			}
			out := cni(t, node, "ADD", ns, plugin, conf)
			if err := json.Unmarshal(out, &result); err != nil {
				t.Fatal(err)
			}
			before := state(t, ns)
			links := mustRead(t, ns)
			if len(links) != 1 || links[0].NIC.MTU != 1450 {
				t.Fatalf("links: %+v", links)
			}
			nic := links[0].NIC
			var want []netip.Prefix
			gateways := map[netip.Addr]bool{}
			for _, ip := range result.IPs {
				want = append(want, ip.Address)
				gateways[ip.Gateway] = true
			}
			if diff := cmp.Diff(want, nic.Addresses, netComparers); diff != "" {
				t.Errorf("addresses:\n%s", diff)
			}
			defaults := 0
			for _, r := range nic.Routes {
				if !r.Destination.IsValid() && gateways[r.Gateway] {
					defaults++
				}
			}
			if defaults != 2 {
				t.Errorf("routes: %+v", nic.Routes)
			}

			a, err := Attach(t.Context(), ns, owner, links)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			if err := a.Up(t.Context()); err != nil {
				t.Fatal(err)
			}
			newGuest(t, a, 0).serve(t)
			settled(t, node) // or the kernel picks ::1 as its own address
			for _, p := range nic.Addresses {
				if err := echo(node, p.Addr().String(), 200, 10*time.Second); err != nil {
					t.Errorf("%v; node: %s%s", err, sh(t, node, "ip", "addr"), sh(t, node, "ip", "neigh"))
				}
			}
			if err := Detach(t.Context(), ns, links); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(before, state(t, ns)); diff != "" {
				t.Errorf("namespace after Detach:\n%s", diff)
			}
			cni(t, node, "DEL", ns, plugin, conf)
		})
	}
}
