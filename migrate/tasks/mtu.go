package tasks

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
)

// Network says why the network of this node could not carry the NICs of a VM that is to come. It goes by CNI's
// configuration. Empty: nothing is known against it. What plugins take from elsewhere, such as the MTU of another
// interface, Create sees.
func (c *Client) Network(ctx context.Context, vm *nodev1.VM, nics []spec.NIC) (obstacle string, err error) {
	if len(nics) == 0 {
		return "", nil
	}
	left, err := c.remains(namespaces.WithNamespace(ctx, vm.GetNamespace()), vm)
	if err != nil || left.connects {
		return "", err // what it left here makes its network
	}
	return c.networks.obstacle(nics[0])
}

// obstacle is about the NIC that CNI's network makes.
func (n *networks) obstacle(nic spec.NIC) (string, error) {
	plugins, err := n.plugins()
	if errdefs.IsFailedPrecondition(err) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	for _, made := range plugins.GetConfig().Networks {
		mtu, by := 0, ""
		for _, plugin := range made.Config.Plugins { // a later one changes what an earlier one made
			var says struct {
				Type string `json:"type"`
				MTU  int    `json:"mtu"`
			}
			if json.Unmarshal([]byte(plugin.Source), &says) == nil && says.MTU > 0 {
				mtu, by = says.MTU, says.Type
			}
		}
		if mtu > 0 && mtu < nic.MTU {
			return fmt.Sprintf("the guest's MTU is %d, CNI network %q gives %d (mtu of its plugin %s, in cni.conf_dir)", nic.MTU,
				made.Config.Name, mtu, by), nil
		}
	}
	return "", nil
}
