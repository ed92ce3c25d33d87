package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// addressConfig is the network of VirtualMachines: one subnet for all nodes, in which a pod can ask for an address.
const addressConfig = `{"cniVersion": "1.0.0", "name": "godwit", "plugins": [
	{"type": "bridge", "bridge": "gw0", "isGateway": false, "ipMasq": false},
	{"type": "addresses", "dir": %q, "capabilities": {"io.kubernetes.cri.pod-annotations": true}},
	{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
]}`

// addressAnnotation is the operator's setting for it.
const addressAnnotation = "cni.projectcalico.org/ipAddrs=json"

func (c *Cluster) leases() string { return filepath.Join(c.Dir, "leases") }

// writeNetwork gives each node that network.
func (c *Cluster) writeNetwork(ctx context.Context) error {
	plugin, err := c.Build(ctx, "addresses")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.leases(), 0o755); err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		inside := func(path string) string { return filepath.Join(n.Root(), path) }
		if err := copyProgram(plugin, inside("/opt/cni/bin/addresses")); err != nil {
			return err
		}
		if err := os.WriteFile(inside("/etc/cni/net.d/10-godwit.conflist"), fmt.Appendf(nil, addressConfig, c.leases()),
			0o600); err != nil {
			return err
		}
		// containerd reads it at its start for sure, and else once it notices.
		if err := n.Containerd.Stop(); err != nil {
			return err
		}
		if err := n.StartContainerd(ctx); err != nil {
			return err
		}
	}
	return nil
}

// copyProgram copies it: a pod that mounts its directory sees where no link leads.
func copyProgram(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// Deaf has the network give no pod the address that it asks for; or it does so again.
func (c *Cluster) Deaf(deaf bool) error {
	file := filepath.Join(c.leases(), "deaf")
	if deaf {
		return os.WriteFile(file, nil, 0o600)
	}
	return os.Remove(file)
}
