package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	gocni "github.com/containerd/go-cni"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network"
)

// cniID is what ctr and nerdctl call a container towards CNI, so that either side can
// give back the lease that the other one took.
func cniID(vm *nodev1.VM) string { return vm.GetNamespace() + "-" + vm.GetId() }

func (c *Client) netnsPath(vm *nodev1.VM) string {
	return filepath.Join(c.config.RunDir, "netns", cniID(vm))
}

// network makes the namespace of a VM that had NICs and lets CNI fill it; a VM without
// NICs gets an empty one from its shim.
func (c *Client) network(ctx context.Context, vm *nodev1.VM, path string, nic spec.NIC) error {
	plugins, err := c.cni()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	if err := network.NewNamespace(path); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	if err := setup(ctx, plugins, cniID(vm), path, nic); err != nil {
		return fmt.Errorf("CNI add (cni.conf_dir %s): %w", c.config.CNI.ConfDir, err)
	}
	return nil
}

// setup asks for the addresses and the MAC that the VM had, which a plugin may honour,
// ignore, or refuse because they are not its to give: then it gives what it likes, and
// the guest is re-addressed.
func setup(ctx context.Context, plugins gocni.CNI, id, path string, nic spec.NIC) error {
	ips := make([]string, 0, len(nic.Addresses))
	for _, prefix := range nic.Addresses {
		ips = append(ips, prefix.Addr().String())
	}
	_, err := plugins.Setup(ctx, id, path, gocni.WithCapability("ips", ips), gocni.WithCapability("mac", nic.MAC))
	if err == nil {
		return nil
	}
	slog.WarnContext(ctx, "CNI refuses the addresses that the VM had", "id", id, "addresses", ips, "error", err)
	if err := plugins.Remove(ctx, id, path); err != nil {
		return err
	}
	_, err = plugins.Setup(ctx, id, path)
	return err
}

// release gives the CNI lease back and removes the namespace that network made.
// Namespaces made by others are theirs to remove; their lease is not, once the VM has
// left the node.
func (c *Client) release(ctx context.Context, vm *nodev1.VM) error {
	return c.giveBack(ctx, cniID(vm), c.netnsPath(vm))
}

// giveBack is release by the id that CNI knows.
func (c *Client) giveBack(ctx context.Context, id, path string) error {
	_, err := os.Stat(path)
	made := err == nil
	if !made {
		path = ""
	}
	if plugins, err := c.cni(); err == nil {
		if err := plugins.Remove(ctx, id, path); err != nil {
			return fmt.Errorf("CNI del of %s: %w", id, err)
		}
	} else if made {
		return err
	}
	if !made {
		return nil
	}
	if err := network.DeleteNamespace(path); err != nil {
		return fmt.Errorf("delete network namespace %s: %w", path, err)
	}
	return nil
}

// cni reads the configuration anew for each use, as it may change under us.
func (c *Client) cni() (gocni.CNI, error) {
	plugins, err := gocni.New(
		gocni.WithPluginConfDir(c.config.CNI.ConfDir),
		gocni.WithPluginDir([]string{c.config.CNI.BinDir}),
		gocni.WithMinNetworkCount(2),
		gocni.WithLoNetwork,
		gocni.WithDefaultConf,
	)
	if err != nil {
		return nil, fmt.Errorf("CNI configuration in %s (cni.conf_dir): %w: %w", c.config.CNI.ConfDir, errdefs.ErrFailedPrecondition, err)
	}
	return plugins, nil
}
