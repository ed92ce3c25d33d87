package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	gocni "github.com/containerd/go-cni"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/errno"
	"godwit.dev/godwit/network"
)

// networks are the namespaces of VMs that wake here. What is made for a VM lies at a path
// of its own, so that nothing of one VM is ever taken for another's.
type networks struct {
	dir     string                  // one folder for each of containerd's namespaces
	plugins func() (leases, error)  // CNI, as configured now
	add     func(path string) error // a network namespace
	remove  func(path string) error
	is      func(path string) (bool, error)                                // there is a namespace
	read    func(ctx context.Context, path string) ([]network.Link, error) // what CNI has made there
}

// leases are what is used of CNI.
type leases interface {
	Setup(ctx context.Context, id, path string, opts ...gocni.NamespaceOpts) (*gocni.Result, error)
	Remove(ctx context.Context, id, path string, opts ...gocni.NamespaceOpts) error
	GetConfig() *gocni.ConfigResult
}

func newNetworks(cfg *config.Config) *networks {
	return &networks{
		dir: filepath.Join(cfg.RunDir, "netns"), plugins: func() (leases, error) { return cni(cfg.CNI) },
		add: network.NewGuestNamespace, remove: network.DeleteNamespace, is: network.IsNamespace, read: network.Read,
	}
}

// cniID is what ctr and nerdctl call a container towards CNI, so that either side can
// give back the lease that the other one took. It is theirs, and the same for a/b-c and
// a-b/c: docs/concepts/network.md warns of such names.
func cniID(vm *nodev1.VM) string { return vm.GetNamespace() + "-" + vm.GetId() }

func (n *networks) path(vm *nodev1.VM) string {
	return filepath.Join(n.dir, vm.GetNamespace(), vm.GetId())
}

// connect makes the namespace of a VM that had NICs and lets CNI fill it. A VM without NICs gets an empty one from
// its shim. The caller has seen that the VM has no task here: a namespace that is there is what a dead godwitd
// made, and goes first. Interfaces that cannot carry the NICs are an error now, and not after a commit.
func (n *networks) connect(ctx context.Context, vm *nodev1.VM, nics []spec.NIC) error {
	plugins, err := n.plugins()
	if err != nil {
		return err
	}
	if err := n.undo(ctx, vm); err != nil {
		return err
	}
	path := n.path(vm)
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	if err := n.add(path); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	if err := setup(ctx, plugins, cniID(vm), path, nics[0]); err != nil {
		return fmt.Errorf("CNI add: %w", err)
	}
	links, err := n.read(ctx, path)
	if err != nil {
		return err
	}
	_, _, err = network.Merge(nics, links)
	return err
}

// setup asks for the addresses and the MAC that the VM had. A plugin may honour or ignore them, or refuse because
// they are not its to give: then it gives what it likes, and the guest is re-addressed.
func setup(ctx context.Context, plugins leases, id, path string, nic spec.NIC) error {
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

// undo gives back what connect made, namespace and lease; if it made none, nothing.
func (n *networks) undo(ctx context.Context, vm *nodev1.VM) error {
	path := n.path(vm)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	plugins, err := n.plugins()
	if err != nil {
		return err
	}
	within := path
	if is, err := n.is(path); err != nil {
		return err
	} else if !is { // a crash has left its file: plugins refuse it, and give the lease back without one
		within = ""
	}
	if err := plugins.Remove(ctx, cniID(vm), within); err != nil {
		return fmt.Errorf("CNI del of %s: %w", cniID(vm), err)
	}
	if err := n.remove(path); err != nil {
		return fmt.Errorf("delete network namespace %s: %w", path, err)
	}
	return nil
}

// release is undo for a VM that has left the node. A namespace made by others is theirs
// to remove; its lease is not.
func (n *networks) release(ctx context.Context, vm *nodev1.VM) error {
	if _, err := os.Stat(n.path(vm)); err == nil {
		return n.undo(ctx, vm)
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for network namespace: %w", err)
	}
	plugins, err := n.plugins()
	if gocni.IsCNINotInitialized(err) {
		return nil // no CNI, no lease
	}
	if err != nil {
		return err
	}
	if err := plugins.Remove(ctx, cniID(vm), ""); err != nil {
		return fmt.Errorf("CNI del of %s: %w", cniID(vm), err)
	}
	return nil
}

// cni reads the configuration anew for each use, as it may change under us.
func cni(cfg config.CNI) (leases, error) {
	plugins, err := gocni.New(
		gocni.WithPluginConfDir(cfg.ConfDir),
		gocni.WithPluginDir([]string{cfg.BinDir}),
		gocni.WithMinNetworkCount(2),
		gocni.WithLoNetwork,
		gocni.WithDefaultConf,
	)
	if err == nil {
		return plugins, nil
	}
	var class error = errdefs.ErrFailedPrecondition
	// go-cni has the error of the system as text alone.
	if _, derr := os.ReadDir(cfg.ConfDir); errdefs.IsResourceExhausted(errno.Resolve(derr)) {
		class = errdefs.ErrResourceExhausted
	}
	return nil, fmt.Errorf("CNI configuration in %s (cni.conf_dir): %w: %w", cfg.ConfDir, class, err)
}
