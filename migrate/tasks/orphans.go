package tasks

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Orphans gives back the networks of VMs whose container object is gone: a user who deletes a task and its
// container with containerd's own tools does not know of a namespace that a wake made here. A wake makes the
// container object before the namespace, so nothing that is under way is taken for an orphan.
func (c *Client) Orphans(ctx context.Context) error {
	spaces, err := entries(c.networks.dir)
	errs := []error{err}
	for _, ns := range spaces {
		if !ns.IsDir() {
			continue
		}
		ids, err := entries(filepath.Join(c.networks.dir, ns.Name()))
		errs = append(errs, err)
		for _, id := range ids {
			errs = append(errs, c.orphan(ctx, &nodev1.VM{Namespace: ns.Name(), Id: id.Name()}))
		}
	}
	return errors.Join(errs...)
}

// entries of a directory, as far as they can be read. One that is not there has none.
func entries(dir string) ([]os.DirEntry, error) {
	all, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// busyBound is how long an orphan waits for a call about a VM of its name, such as a wake. That call does away with
// the orphan itself.
const busyBound = time.Second

// orphan gives back the network of a VM that has no container.
func (c *Client) orphan(ctx context.Context, vm *nodev1.VM) error {
	if _, err := os.Stat(c.networks.path(vm)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if kept, err := c.Has(ctx, vm); kept || err != nil { // no call is waited for
		return err
	}
	bound, cancel := context.WithTimeout(ctx, busyBound)
	unlock, err := c.serial.lock(bound, vm)
	cancel()
	if err != nil {
		return ctx.Err()
	}
	defer unlock()
	ctx, cancel = context.WithTimeout(ctx, undoTimeout) // others wait for the VM's turn
	defer cancel()
	if kept, err := c.Has(ctx, vm); kept || err != nil {
		return err
	}
	return c.networks.undo(ctx, vm)
}

// resubscribe is how long containerd is left alone when it tells no events any more.
const resubscribe = 5 * time.Second

// WatchDeleted gives back the network and the disk of a VM as soon as its container is deleted. Another one of its
// name, which has its lease, can then run at once. What it misses Orphans finds. It returns when ctx ends.
func (c *Client) WatchDeleted(ctx context.Context) {
	for {
		told, failed := c.containerd.EventService().Subscribe(ctx, `topic=="/containers/delete"`)
		c.deleted(ctx, told, failed)
		select {
		case <-time.After(resubscribe):
		case <-ctx.Done():
			return
		}
	}
}

// deleted hears of containers until there are no events any more. A network that takes its time holds
// up no other one.
func (c *Client) deleted(ctx context.Context, told <-chan *events.Envelope, failed <-chan error) {
	for {
		select {
		case e := <-told:
			any, err := typeurl.UnmarshalAny(e.Event)
			gone, ok := any.(*eventsapi.ContainerDelete)
			if err != nil || !ok {
				continue
			}
			vm := &nodev1.VM{Namespace: e.Namespace, Id: gone.ID}
			go func() {
				if err := c.RemoveOrphanDisks(ctx); err != nil && ctx.Err() == nil {
					slog.WarnContext(ctx, "disk of a deleted container is kept for now", "error", err)
				}
				if err := c.orphan(ctx, vm); err != nil && ctx.Err() == nil {
					slog.WarnContext(ctx, "network of a deleted container is kept for now", "vm", vm.GetNamespace()+"/"+vm.GetId(),
						"error", err)
				}
			}()
		case err := <-failed:
			slog.DebugContext(ctx, "containerd tells no events", "error", err)
			return
		case <-ctx.Done():
			return
		}
	}
}
