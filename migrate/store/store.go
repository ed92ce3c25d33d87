// Package store keeps the records and operations of the controller. A change is durable
// when Apply returns, and applies only to the version it was made from.
package store

import (
	"context"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Store is what the controller needs; package storetest says what each method promises.
type Store interface {
	// Load reads the record of vm and what is asked for in one view; what is not there is nil.
	// What is pending for the VM, which may be much, costs nothing where it is not asked for.
	Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error)
	// Apply makes change durable if the record of vm still has this version (0: none) and the
	// store's own state that of change, else it answers ErrConflict. It answers the record with its new version.
	Apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record, error)
	// List answers records, ordered by namespace and id: those that come after one of that key
	// (namespace NUL id; empty: all), until they have more than room bytes (0: to the last). UnreadError: it answers all
	// but those.
	List(ctx context.Context, after string, room int) ([]*nodev1.Record, error)
	// Find answers some of them, in that order, at the cost of those alone where the store has an
	// index that can be relied on.
	Find(ctx context.Context, which Which) (Found, error)
	// Operation answers an open or closed operation, or ErrNotFound.
	Operation(ctx context.Context, id string) (*nodev1.Operation, error)
	PendingDeletions
	Incarnations
}

// PendingDeletions are the snapshots that are to be deleted: a change adds them, in its one write.
type PendingDeletions interface {
	// PendingDeletions answers some, ordered by VM, as Find does. UnreadError: it answers all but those of these.
	PendingDeletions(ctx context.Context, which WhichDeletions) ([]*nodev1.Owed, error)
	// Clear removes one. One that is not there is removed already.
	Clear(ctx context.Context, vm *nodev1.VM, repository, digest string) error
}

// Shared is a store that other controllers write to as well, maybe of a build that keeps no index.
type Shared interface {
	// Reindex makes the index one that is read, or, not all, one that is not: until every
	// controller that writes to the store is known to keep it. One that was not read is made anew.
	Reindex(ctx context.Context, all bool) error
}

// Mirror is a store that is told of each change.
type Mirror interface {
	// FindCached is Find as of a moment ago, two minutes at most, without a question to anybody. What it leaves away may
	// be there. false: what is known is older than that.
	FindCached(which Which) (Found, bool)
	// StateCached is State, in the same way.
	StateCached() (*nodev1.StoreState, bool)
}

// Notes are small things in addition to the records, by kind and key.
type Notes interface {
	// Note makes value durable; a nil one removes the note.
	Note(ctx context.Context, kind, key string, value []byte) error
	// NoteNew makes value durable where there is no such note, else it changes nothing and
	// answers ErrAlreadyExists.
	NoteNew(ctx context.Context, kind, key string, value []byte) error
	// NoteOf answers one, or that there is none.
	NoteOf(ctx context.Context, kind, key string) (value []byte, there bool, err error)
	// Notes answers those of a kind whose keys come after that one, ordered by key.
	Notes(ctx context.Context, kind, after string) ([]Note, error)
}

// Note is one of Notes.
type Note struct {
	Key   string
	Value []byte
}

// Kept is the number of closed operations that a store remembers of each VM.
const Kept = 32
