package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// List answers the VMs that this node holds something of. With an error it answers those that it
// could read: they are here. What is not in the list may be here all the same.
func (m *Machines) List() ([]*nodev1.VM, error) {
	spaces, err := directories(m.Config.VMsDir())
	if err != nil {
		return nil, fmt.Errorf("list VMs: %w", err)
	}
	var vms []*nodev1.VM
	var errs []error
	for _, ns := range spaces {
		ids, err := directories(filepath.Join(m.Config.VMsDir(), ns))
		if err != nil {
			errs = append(errs, fmt.Errorf("list VMs of namespace %s: %w", ns, err))
		}
		for _, id := range ids {
			vms = append(vms, &nodev1.VM{Namespace: ns, Id: id})
		}
	}
	return vms, errors.Join(errs...)
}

// directories are the names of those in dir, as far as it can be read; a dir that is not there has none.
func directories(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range all {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Known reports whether this node holds anything of the VM. False is a proof: there is no
// journal and no RAM file. The journal comes before all that a VM has and goes after it. The RAM
// file goes after the VMM's process and lies on another file system. Whatever cannot be looked
// at is an error, and proves nothing. A directory without a journal holds nothing: its shim died
// before the first word.
func (m *Machines) Known(vm *nodev1.VM) (bool, error) {
	ns, id := vm.GetNamespace(), vm.GetId()
	for _, path := range []string{filepath.Join(m.Config.VMDir(ns, id), "node.json"), m.Config.RAMFile(ns, id)} {
		_, err := os.Lstat(path)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("look for VM %s/%s: %w", ns, id, err)
		}
	}
	// That a path leads nowhere says something below directories that are there and can be read.
	for _, dir := range []string{m.Config.StateDir, m.Config.RAMDir} {
		if _, err := os.ReadDir(dir); err != nil {
			return false, fmt.Errorf("look for VM %s/%s: %w", ns, id, err)
		}
	}
	return false, nil
}

// without is the class of a shim that could not be dialled: NotFound where it has no socket, and
// nothing of its VM is here.
func (m *Machines) without(vm *nodev1.VM, dial error) error {
	if !errors.Is(dial, fs.ErrNotExist) {
		return errdefs.ErrUnavailable
	}
	known, err := m.Known(vm)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
	case known:
		return errdefs.ErrUnavailable
	}
	return errdefs.ErrNotFound
}
