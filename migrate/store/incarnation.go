package store

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	etcd "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Incarnations is a store as a whole, which may have been put back from a copy. Apply compares
// the state's version with the one that a change was made under (transition.Change.Under): what
// was decided before the state changed is a conflict after it.
type Incarnations interface {
	// State answers what the store says of itself; version 0: it was never put back.
	State(ctx context.Context) (*nodev1.StoreState, error)
	// SetState makes it durable if the store's still has that version, else it answers
	// ErrConflict. It answers the state with its new version.
	SetState(ctx context.Context, version uint64, state *nodev1.StoreState) (*nodev1.StoreState, error)
	// Revision answers State, and how far the store is. Each change makes that number larger. Where
	// it is smaller than it was, the store is another one, or was put back from a copy.
	Revision(ctx context.Context) (state *nodev1.StoreState, revision uint64, err error)
}

// keyState is the store's own state: in the bucket meta of a file, below the prefix of an etcd.
const keyState = "incarnation"

func stateOf(tx *bolt.Tx) (*nodev1.StoreState, error) {
	state, err := get[nodev1.StoreState](tx, bucketMeta, []byte(keyState))
	if state == nil {
		state = &nodev1.StoreState{}
	}
	return state, err
}

// under refuses what was decided under another state of the store.
func under(state *nodev1.StoreState, version uint64) error {
	if v := state.GetVersion(); v != version {
		return fmt.Errorf("the store's own state is of version %d, not %d: %w", v, version, errdefs.ErrConflict)
	}
	return nil
}

// State implements Incarnations.
func (b *Bolt) State(context.Context) (state *nodev1.StoreState, err error) {
	err = b.db.View(func(tx *bolt.Tx) error { state, err = stateOf(tx); return err })
	if err != nil {
		return nil, fmt.Errorf("load state of the store: %w", err)
	}
	return state, nil
}

// Revision implements Incarnations: it is the number of the last transaction.
func (b *Bolt) Revision(context.Context) (state *nodev1.StoreState, revision uint64, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		revision = uint64(tx.ID())
		state, err = stateOf(tx)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("load revision of the store: %w", err)
	}
	return state, revision, nil
}

// SetState implements Incarnations.
func (b *Bolt) SetState(_ context.Context, version uint64, state *nodev1.StoreState) (*nodev1.StoreState, error) {
	state = proto.CloneOf(state)
	err := b.update(func(tx *bolt.Tx) error {
		now, err := stateOf(tx)
		if err == nil {
			err = under(now, version)
		}
		if err != nil {
			return err
		}
		state.Version = version + 1
		return put(tx, bucketMeta, []byte(keyState), state)
	})
	if err != nil {
		return nil, fmt.Errorf("store state of the store: %w", err)
	}
	return state, nil
}

// stateOf is the state as the read at i has found it; its version is its key's revision.
func (e *Etcd) stateOf(resp *etcd.TxnResponse, i int) (*nodev1.StoreState, error) {
	found := kvs(resp, i)
	state, err := first[nodev1.StoreState](found)
	if state == nil {
		state = &nodev1.StoreState{}
	}
	state.Version = uint64(revision(found))
	return state, err
}

// State implements Incarnations.
func (e *Etcd) State(ctx context.Context) (*nodev1.StoreState, error) {
	state, _, err := e.Revision(ctx)
	return state, err
}

// Revision implements Incarnations: it is that of the whole etcd.
func (e *Etcd) Revision(ctx context.Context) (state *nodev1.StoreState, revision uint64, err error) {
	resp, err := e.txn(ctx, nil, []etcd.Op{etcd.OpGet(e.prefix + keyState)}, nil)
	if err == nil {
		state, err = e.stateOf(resp, 0)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("load state of the store: %w", err)
	}
	return state, uint64(resp.Header.GetRevision()), nil
}

// SetState implements Incarnations.
func (e *Etcd) SetState(ctx context.Context, version uint64, state *nodev1.StoreState) (*nodev1.StoreState, error) {
	state = proto.CloneOf(state)
	w, key := &write{e: e}, e.prefix+keyState
	w.unchanged(key, int64(version))
	w.put(key, state)
	if w.err != nil {
		return nil, fmt.Errorf("store state of the store: %w", w.err)
	}
	resp, err := e.txn(ctx, w.ifs, w.then, nil)
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("it is not of version %d any more: %w", version, errdefs.ErrConflict)
	}
	if err != nil {
		return nil, fmt.Errorf("store state of the store: %w", err)
	}
	state.Version = uint64(resp.Header.Revision)
	return state, nil
}
