package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Load implements store.Store. The record is read first, and the store's own state after it: see SetState.
func (s *Store) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	found, err := s.load(ctx, vm, asked)
	if err != nil {
		return transition.State{}, fmt.Errorf("load record of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return found, nil
}

func (s *Store) load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (out transition.State, err error) {
	_, now, err := s.content(ctx, vm)
	if err != nil {
		return out, err
	}
	out.Record = now.record
	if out.Store, err = s.State(ctx); err != nil {
		return out, err
	}
	if asked.Operation != "" {
		if out.Named = now.operation(asked.Operation); out.Named == nil {
			out.Named, err = s.find(ctx, asked.Operation)
		}
	}
	if err == nil && asked.PendingDeletions {
		out.PendingDeletions, err = s.PendingDeletions(ctx, store.WhichDeletions{VM: vm})
	}
	return out, err
}

// content reads what the API server has of a VM; the object is nil where there is none.
func (s *Store) content(ctx context.Context, vm *nodev1.VM) (*v1alpha1.VMRecord, content, error) {
	name, err := objectName(vm)
	if err != nil {
		return nil, content{}, err
	}
	o, there, err := s.records.get(ctx, name)
	if err != nil || !there {
		return nil, content{}, err
	}
	c, err := decode(o)
	return o, c, err
}

// find looks for an operation in all records; nil: there is none.
func (s *Store) find(ctx context.Context, id string) (op *nodev1.Operation, err error) {
	err = s.each(ctx, operationLabel(id), func(o *v1alpha1.VMRecord) error {
		c, err := decode(o)
		if found := c.operation(id); found != nil {
			op = found
		}
		return err
	})
	return op, err
}

// Operation implements store.Store.
func (s *Store) Operation(ctx context.Context, id string) (*nodev1.Operation, error) {
	op, err := s.find(ctx, id)
	if err == nil && op == nil {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("operation %s: %w", id, err)
	}
	return op, nil
}

// List implements store.Store. Names of objects are not in the order of VMs, so all are read for a part too.
func (s *Store) List(ctx context.Context, after string, room int) (all []*nodev1.Record, err error) {
	unread, err := s.readable(ctx, "", func(_ *v1alpha1.VMRecord, c content) error {
		if c.record != nil && key(c.record.GetVm()) > after {
			all = append(all, c.record)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	slices.SortFunc(all, byKey)
	size := 0
	for i, rec := range all {
		if size += proto.Size(rec); room > 0 && size > room {
			all = all[:i+1]
			break
		}
	}
	return all, listed(unread)
}

// listed is the error of a list that lacks some records.
func listed(unread []store.Unread) error {
	if err := store.UnreadOf(unread); err != nil {
		return fmt.Errorf("list records: %w", err)
	}
	return nil
}

func byKey(a, b *nodev1.Record) int { return strings.Compare(key(a.GetVm()), key(b.GetVm())) }

// Find implements store.Store.
func (s *Store) Find(ctx context.Context, which store.Which) (found store.Found, err error) {
	if found.State, err = s.State(ctx); err != nil {
		return found, err
	}
	if which.Deleter != "" {
		all, err := s.PendingDeletions(ctx, store.WhichDeletions{Deleter: which.Deleter})
		unread, err := unreadOf(err)
		if err != nil {
			return store.Found{}, err
		}
		found.HasDeletions = has(len(all) > 0, unread)
	}
	all, err := s.List(ctx, "", 0)
	if found.Unread, err = unreadOf(err); err != nil {
		return store.Found{}, err
	}
	found.Records = slices.DeleteFunc(all, func(r *nodev1.Record) bool { return !which.Has(r) })
	return found, nil
}

// PendingDeletions implements store.Store.
func (s *Store) PendingDeletions(ctx context.Context, which store.WhichDeletions) (all []*nodev1.Owed, err error) {
	take := func(_ *v1alpha1.VMRecord, c content) error {
		for _, owed := range c.owed {
			if which.Has(owed) {
				all = append(all, owed)
			}
		}
		return nil
	}
	var unread []store.Unread
	if which.VM == nil {
		unread, err = s.readable(ctx, owes, take)
	} else if o, c, gerr := s.content(ctx, which.VM); gerr != nil { // those of a VM are in its own object
		err = gerr
	} else {
		err = take(o, c)
	}
	if err != nil {
		return nil, fmt.Errorf("list pending deletions: %w", err)
	}
	slices.SortFunc(all, func(a, b *nodev1.Owed) int { return strings.Compare(place(a), place(b)) })
	return all, listed(unread)
}
