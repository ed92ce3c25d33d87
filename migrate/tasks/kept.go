package tasks

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// labelDatabase of a namespace tells this database of containerd from another one, which has no containers of ours
// either: a new one, an old copy, or that of another containerd.
const labelDatabase = "godwit.dev/database"

// KeptDisk is a disk that waits for the next task of a container.
type KeptDisk struct {
	VM     *nodev1.VM
	Rooted bool // containerd has made a root file system for the container, and has removed it
	// Container is the identity of one that is not rooted: of its database, and its own. Empty: not known.
	Container string
}

// KeptDisks are those of a node.
type KeptDisks interface {
	// RemoveOrphans removes those of containers that are gone, of which absent is the proof.
	RemoveOrphans(absent func(KeptDisk) (bool, error)) error
	// Rootless lists those of containers without a root file system.
	Rootless() ([]KeptDisk, error)
}

// newIdentity is for a container that is made without a root file system.
func (c *Client) newIdentity(ctx context.Context, vm *nodev1.VM) (string, error) {
	unlock, err := c.serial.lock(ctx, &nodev1.VM{Namespace: vm.GetNamespace()})
	if err != nil {
		return "", err
	}
	defer unlock()
	database, err := c.database(ctx, vm.GetNamespace())
	if err == nil && database == "" {
		database = uuid.NewString()
		err = c.containerd.NamespaceService().SetLabel(ctx, vm.GetNamespace(), labelDatabase, database)
	}
	if err != nil {
		return "", fmt.Errorf("label containerd's namespace %s: %w", vm.GetNamespace(), err)
	}
	return database + "/" + uuid.NewString(), nil
}

// database is which one containerd has now for a namespace; empty: no container of ours was ever made in it.
func (c *Client) database(ctx context.Context, namespace string) (string, error) {
	labels, err := c.containerd.NamespaceService().Labels(ctx, namespace)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	return labels[labelDatabase], err
}

// RemoveOrphanDisks removes the disks that were kept for the next task of a container that is gone.
func (c *Client) RemoveOrphanDisks(ctx context.Context) error {
	if c.Kept == nil {
		return nil
	}
	return c.Kept.RemoveOrphans(func(k KeptDisk) (bool, error) { return c.gone(ctx, k) })
}

// gone reports whether a container is proved to be gone. The database has to be the one that the container was in.
func (c *Client) gone(ctx context.Context, k KeptDisk) (bool, error) {
	if has, err := c.Has(ctx, k.VM); has || err != nil {
		return false, err
	}
	return c.knows(ctx, k)
}

// knows reports whether containerd's word about a container is a proof.
func (c *Client) knows(ctx context.Context, k KeptDisk) (bool, error) {
	if k.Rooted {
		return true, nil // by the directory of its snapshots
	}
	was, _, _ := strings.Cut(k.Container, "/")
	if was == "" {
		return false, nil
	}
	now, err := c.database(ctx, k.VM.GetNamespace())
	if err != nil {
		return false, fmt.Errorf("read the labels of containerd's namespace %s: %w", k.VM.GetNamespace(), err)
	}
	return was == now, nil
}

// KeptFinding is about the disks of VMs whose containers are not in this database of containerd, and may be in another
// one.
func (c *Client) KeptFinding(ctx context.Context) (string, error) {
	if c.Kept == nil {
		return "none", nil
	}
	all, err := c.Kept.Rootless()
	if err != nil {
		return "", fmt.Errorf("list the disks of stopped VMs: %w", err)
	}
	var unknown []string
	for _, k := range all {
		has, err := c.Has(ctx, k.VM)
		if err != nil {
			return "", err
		}
		if has {
			continue
		}
		if known, err := c.knows(ctx, k); err != nil {
			return "", err
		} else if !known {
			unknown = append(unknown, k.VM.GetNamespace()+"/"+k.VM.GetId())
		}
	}
	if len(unknown) == 0 {
		return fmt.Sprintf("%d of VMs that came from other nodes", len(all)), nil
	}
	slices.Sort(unknown)
	return "", fmt.Errorf("disks of stopped VMs %s are here, but their containers are not in this containerd. So godwit "+
		"removes nothing: %w", strings.Join(unknown, ", "), errdefs.ErrFailedPrecondition)
}
