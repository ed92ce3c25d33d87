package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Memory is a store that keeps nothing beyond its process: for tests that run thousands of
// times. It passes the suite but for what needs a disk.
type Memory struct {
	mu         sync.Mutex
	sequence   uint64
	revision   uint64
	records    map[string]*nodev1.Record
	operations map[string]*nodev1.Operation
	closed     map[string][]string // ids by VM, oldest first
	pending    map[string]*nodev1.Owed
	notes      map[string][]byte
	state      *nodev1.StoreState
}

var (
	_ store.Store = (*Memory)(nil)
	_ store.Notes = (*Memory)(nil)
)

// NewMemory returns an empty one.
func NewMemory() *Memory {
	return &Memory{
		records: map[string]*nodev1.Record{}, operations: map[string]*nodev1.Operation{}, closed: map[string][]string{},
		pending: map[string]*nodev1.Owed{}, notes: map[string][]byte{}, state: &nodev1.StoreState{},
	}
}

func name(vm *nodev1.VM) string { return vm.GetNamespace() + "\x00" + vm.GetId() + "\x00" }

// Load implements store.Store.
func (m *Memory) Load(_ context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := transition.State{Record: proto.CloneOf(m.records[name(vm)]), Named: proto.CloneOf(m.operations[asked.Operation]),
		Store: proto.CloneOf(m.state)}
	for _, k := range slices.Sorted(maps.Keys(m.pending)) {
		if asked.PendingDeletions && strings.HasPrefix(k, name(vm)) {
			s.PendingDeletions = append(s.PendingDeletions, proto.CloneOf(m.pending[k]))
		}
	}
	return s, nil
}

// Apply implements store.Store.
func (m *Memory) Apply(_ context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.records[name(vm)].GetVersion(); now != version {
		return nil, fmt.Errorf("version is %d, not %d: %w", now, version, errdefs.ErrConflict)
	}
	if v := m.state.GetVersion(); v != change.Under {
		return nil, fmt.Errorf("the store's own state is of version %d, not %d: %w", v, change.Under, errdefs.ErrConflict)
	}
	op := change.Record.GetOperation()
	if old := m.operations[op.GetId()]; op != nil && old != nil && (!proto.Equal(old.GetVm(), op.GetVm()) ||
		transition.Settled(old.GetPhase())) {
		return nil, fmt.Errorf("operation id %s is taken: %w", op.GetId(), errdefs.ErrAlreadyExists)
	}
	for _, o := range change.PendingDeletions {
		m.pending[name(o.GetVm())+o.GetSnapshot().GetRepository()+"\x00"+o.GetSnapshot().GetDigest()] = proto.CloneOf(o)
	}
	if change.Record == nil {
		m.revision++
		delete(m.operations, m.records[name(vm)].GetOperation().GetId())
		delete(m.records, name(vm))
		m.forget(vm, len(m.closed[name(vm)]))
		return nil, nil
	}
	m.revision++
	m.sequence++
	rec := proto.CloneOf(change.Record)
	rec.Version = m.sequence
	m.records[name(vm)] = rec
	if closed := change.Closed; closed != nil {
		m.operations[closed.GetId()] = proto.CloneOf(closed)
		m.closed[name(vm)] = append(m.closed[name(vm)], closed.GetId())
		m.forget(vm, len(m.closed[name(vm)])-store.Kept)
	}
	if op != nil {
		m.operations[op.GetId()] = proto.CloneOf(op)
	}
	return proto.CloneOf(rec), nil
}

// forget drops the n oldest closed operations.
func (m *Memory) forget(vm *nodev1.VM, n int) {
	for ; n > 0; n-- {
		delete(m.operations, m.closed[name(vm)][0])
		m.closed[name(vm)] = m.closed[name(vm)][1:]
	}
}

// List implements store.Store.
func (m *Memory) List(_ context.Context, after string, room int) (all []*nodev1.Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size := 0
	for _, k := range slices.Sorted(maps.Keys(m.records)) {
		if k > after+"\x00" && (room == 0 || size <= room) {
			all = append(all, proto.CloneOf(m.records[k]))
			size += proto.Size(m.records[k])
		}
	}
	return all, nil
}

// Find implements store.Store.
func (m *Memory) Find(ctx context.Context, which store.Which) (found store.Found, err error) {
	if found.State, err = m.State(ctx); err != nil {
		return found, err
	}
	if which.Deleter != "" {
		pendingList, err := m.PendingDeletions(ctx, store.WhichDeletions{Deleter: which.Deleter})
		if err != nil {
			return found, err
		}
		deletions := len(pendingList) > 0
		found.HasDeletions = &deletions
	}
	all, err := m.List(ctx, "", 0)
	found.Records = slices.DeleteFunc(all, func(r *nodev1.Record) bool { return !which.Has(r) })
	return found, err
}

// Operation implements store.Store.
func (m *Memory) Operation(_ context.Context, id string) (*nodev1.Operation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if op := m.operations[id]; op != nil {
		return proto.CloneOf(op), nil
	}
	return nil, fmt.Errorf("operation %s: %w", id, errdefs.ErrNotFound)
}

// PendingDeletions implements store.Store.
func (m *Memory) PendingDeletions(_ context.Context, which store.WhichDeletions) (all []*nodev1.Owed, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(m.pending)) {
		if which.Has(m.pending[k]) {
			all = append(all, proto.CloneOf(m.pending[k]))
		}
	}
	return all, nil
}

// Clear implements store.Store.
func (m *Memory) Clear(_ context.Context, vm *nodev1.VM, repository, digest string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision++
	delete(m.pending, name(vm)+repository+"\x00"+digest)
	return nil
}

// Note implements store.Notes.
func (m *Memory) Note(_ context.Context, kind, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision++
	if m.notes[kind+"\x00"+key] = slices.Clone(value); value == nil {
		delete(m.notes, kind+"\x00"+key)
	}
	return nil
}

// NoteNew implements store.Notes.
func (m *Memory) NoteNew(_ context.Context, kind, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notes[kind+"\x00"+key] != nil {
		return fmt.Errorf("note %s %s: %w", kind, key, errdefs.ErrAlreadyExists)
	}
	m.revision++
	m.notes[kind+"\x00"+key] = slices.Clone(value)
	return nil
}

// NoteOf implements store.Notes.
func (m *Memory) NoteOf(_ context.Context, kind, key string) (value []byte, there bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, there = m.notes[kind+"\x00"+key]
	return slices.Clone(value), there, nil
}

// Notes implements store.Notes.
func (m *Memory) Notes(_ context.Context, kind, after string) (all []store.Note, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, value := range m.notes {
		if key, ok := strings.CutPrefix(k, kind+"\x00"); ok && key > after {
			all = append(all, store.Note{Key: key, Value: slices.Clone(value)})
		}
	}
	slices.SortFunc(all, func(a, b store.Note) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}
