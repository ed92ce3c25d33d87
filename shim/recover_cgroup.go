package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
)

// unshared answers those of a VM's private directories that no other VM of the node is in: one that was made for the VM
// in dir may have been named by a later one too, which lives on. As a rule no process is left in them, and no journal
// is read. A journal that cannot be read may be of such a VM: the error, and no process in the directories is to be
// ended.
func unshared(dir string, private []string) ([]string, error) {
	if left, err := cgroup.OtherProcesses(private); len(left) == 0 || err != nil {
		return private, err
	}
	vms, err := directories(filepath.Dir(filepath.Dir(dir)))
	if err != nil {
		return nil, fmt.Errorf("look whose a cgroup is: %w", err)
	}
	private = slices.Clone(private)
	for _, other := range vms {
		if other == dir {
			continue
		}
		j, err := journal.Read(other)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look whose a cgroup is: %w", err)
		}
		private = slices.DeleteFunc(private, func(d string) bool { return slices.Contains(j.Cgroup, d) })
	}
	return private, nil
}

// directories of the VMs below root, in which each namespace has one. What goes meanwhile is left
// out; what is no directory is none.
func directories(root string) (dirs []string, err error) {
	namespaces, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, ns := range namespaces {
		vms, err := os.ReadDir(filepath.Join(root, ns.Name()))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, vm := range vms {
			if vm.IsDir() {
				dirs = append(dirs, filepath.Join(root, ns.Name(), vm.Name()))
			}
		}
	}
	return dirs, nil
}
