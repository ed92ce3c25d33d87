package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Apply implements store.Store.
func (s *Store) Apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	rec, err := s.apply(ctx, vm, version, change)
	if err != nil {
		return nil, fmt.Errorf("store record of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return rec, nil
}

func (s *Store) apply(ctx context.Context, vm *nodev1.VM, expected uint64, change transition.Change) (*nodev1.Record,
	error) {
	o, now, mine, err := s.last(ctx, vm, expected, change.Under)
	if err != nil {
		return nil, err
	}
	if v := now.record.GetVersion(); v != expected {
		return nil, fmt.Errorf("version is %d, not %d: %w", v, expected, errdefs.ErrConflict)
	}
	if err := s.untaken(ctx, now, change.Record.GetOperation()); err != nil {
		return nil, err
	}
	next := now.after(change)
	if o == nil {
		if next.isEmpty() {
			return nil, s.under(ctx, change.Under)
		}
		if o, err = s.make(ctx, vm); err != nil {
			return nil, err
		}
	}
	if !mine { // the object was read before the state is: see SetState
		if err := s.under(ctx, change.Under); err != nil {
			return nil, err
		}
	}
	if change.Record != nil {
		// No other write is made from this version of the object, and later ones are larger.
		next.record = proto.CloneOf(change.Record)
		if next.record.Version, err = version(o); err != nil {
			return nil, err
		}
	}
	if err := next.write(o); err != nil {
		return nil, err
	}
	if err := next.begins(o, now.record.GetOperation()); err != nil {
		return nil, err
	}
	o.Under = int64(change.Under)
	made, err := s.records.put(ctx, o)
	if err != nil {
		return nil, err
	}
	if next.isEmpty() {
		s.discard(ctx, made)
		return nil, nil
	}
	if next.record.GetOperation() != nil {
		s.recent.keep(made)
	}
	return next.record, nil
}

// last answers the object that a change is made from. It is mine if this process has written it with this version, and
// under this state of the store. Then nothing is read: a later state would have touched it, so that the write is a
// conflict.
func (s *Store) last(ctx context.Context, vm *nodev1.VM, expected, under uint64) (_ *v1alpha1.VMRecord, now content,
	mine bool, _ error) {
	name, err := objectName(vm)
	if err != nil {
		return nil, now, false, err
	}
	if o := s.recent.take(name); o != nil && o.Under == int64(under) {
		if now, err = decode(o); err == nil && now.record.GetVersion() == expected {
			return o, now, true, nil
		}
	}
	o, now, err := s.content(ctx, vm)
	return o, now, false, err
}

// make makes an object without a record. A change of a state of the store that comes later finds it: see SetState.
func (s *Store) make(ctx context.Context, vm *nodev1.VM) (*v1alpha1.VMRecord, error) {
	name, err := objectName(vm)
	if err != nil {
		return nil, err
	}
	o, err := s.records.put(ctx, &v1alpha1.VMRecord{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.VMRecordSpec{VM: v1alpha1.RecordVM{Namespace: vm.GetNamespace(), ID: vm.GetId()}}})
	if errdefs.IsAlreadyExists(err) {
		err = fmt.Errorf("another change came: %w", errdefs.ErrConflict)
	}
	return o, err
}

// discard removes an object that holds nothing. If that fails, it stays, and still holds nothing.
func (s *Store) discard(ctx context.Context, o *v1alpha1.VMRecord) { _ = s.records.remove(ctx, o) }

// untaken refuses an operation whose id is another one's. Two VMs that open one at the same moment are not told apart:
// ids are random, and each call names its VM too.
func (s *Store) untaken(ctx context.Context, now content, op *nodev1.Operation) error {
	if op == nil {
		return nil
	}
	old := now.operation(op.GetId())
	if old == nil {
		var err error
		if old, err = s.find(ctx, op.GetId()); err != nil {
			return err
		}
	}
	if old != nil && (!proto.Equal(old.GetVm(), op.GetVm()) || transition.Settled(old.GetPhase())) {
		return fmt.Errorf("operation id %s is taken: %w", op.GetId(), errdefs.ErrAlreadyExists)
	}
	return nil
}

// Clear implements store.Store. The deletions of a VM are in its own object.
func (s *Store) Clear(ctx context.Context, vm *nodev1.VM, repository, digest string) error {
	cleared := &nodev1.Owed{Vm: vm, Snapshot: &nodev1.SnapshotRef{Repository: repository, Digest: digest}}
	for {
		again, err := s.clear(ctx, cleared)
		if err != nil {
			return fmt.Errorf("clear snapshot %s of VM %s/%s: %w", digest, vm.GetNamespace(), vm.GetId(), err)
		}
		if !again {
			return nil
		}
	}
}

// clear is one try: the record may change meanwhile.
func (s *Store) clear(ctx context.Context, cleared *nodev1.Owed) (again bool, err error) {
	is := func(owed *nodev1.Owed) bool { return same(owed, cleared) }
	o, c, err := s.content(ctx, cleared.GetVm())
	if err != nil || !slices.ContainsFunc(c.owed, is) {
		return false, err
	}
	c.owed = slices.DeleteFunc(c.owed, is)
	if err := c.write(o); err != nil {
		return false, err
	}
	made, err := s.records.put(ctx, o)
	if err == nil && c.isEmpty() {
		s.discard(ctx, made)
	}
	if errdefs.IsConflict(err) {
		return true, nil
	}
	return false, err
}
