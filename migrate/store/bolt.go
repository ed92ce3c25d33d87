package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bolt is the store in one bbolt file. A change is durable when it is answered; those that come
// together share an fsynced transaction.
//
//	records     namespace NUL id        -> Record
//	operations  operation id            -> Operation, open and closed
//	closed      namespace NUL id NUL sequence -> operation id, oldest first
//	owed        namespace NUL id NUL repository NUL digest -> Owed
//	notes       kind NUL key -> what the kind says
//	index       what Find and PendingDeletions go by (index.go)
//	meta        "version" -> decimal number of this format; "incarnation" -> StoreState; "indexed" -> number of the last
//	            transaction that kept the index
type Bolt struct {
	db *bolt.DB

	turn    chan struct{} // held by who commits
	mu      sync.Mutex
	waiting []*change // for the next commit
}

var (
	bucketRecords    = []byte("records")
	bucketOperations = []byte("operations")
	bucketClosed     = []byte("closed")
	bucketPending    = []byte("owed")
	bucketNotes      = []byte("notes")
	bucketIndex      = []byte("index")
	bucketMeta       = []byte("meta")
	keyVersion       = []byte("version")
	keyIndexed       = []byte("indexed")
)

// lockTimeout bounds the wait for another process that has the file open.
const lockTimeout = 5 * time.Second

// Open opens the store at path and makes it and its directory, for the owner alone.
func Open(path string) (*Bolt, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of store %s: %w", path, err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout})
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	b := &Bolt{db: db, turn: make(chan struct{}, 1)}
	if err := b.prepare(); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("prepare store %s: %w", path, err)
	}
	return b, nil
}

// prepare makes the store this build's. Another build has no number of the last transaction, or
// an old one: its changes are not in the index.
func (b *Bolt) prepare() error {
	kept := false
	err := b.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		kept = meta != nil && string(meta.Get(keyIndexed)) == strconv.Itoa(tx.ID())
		return nil
	})
	if err != nil {
		return err
	}
	return b.update(func(tx *bolt.Tx) error {
		if err := prepare(tx); err != nil || kept {
			return err
		}
		return reindex(tx)
	})
}

// prepare makes what is missing, and refuses a store of another version before it has
// changed anything in it. The first builds wrote no version: theirs is 1.
func prepare(tx *bolt.Tx) error {
	if meta := tx.Bucket(bucketMeta); meta != nil {
		if v := string(meta.Get(keyVersion)); v != strconv.Itoa(version.Records) {
			return fmt.Errorf("version %.20q, this build knows %d: %w", v, version.Records, errdefs.ErrNotImplemented)
		}
	}
	for _, name := range [][]byte{bucketRecords, bucketOperations, bucketClosed, bucketPending, bucketNotes, bucketIndex,
		bucketMeta} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketMeta).Put(keyVersion, []byte(strconv.Itoa(version.Records)))
}

// Close waits for transactions under way.
func (b *Bolt) Close() error { return b.db.Close() }

func key(vm *nodev1.VM) []byte { return []byte(vm.GetNamespace() + "\x00" + vm.GetId()) }

// Load implements Store.
func (b *Bolt) Load(_ context.Context, vm *nodev1.VM, asked transition.Asked) (transition.State, error) {
	var s transition.State
	err := b.db.View(func(tx *bolt.Tx) (err error) {
		if s.Record, err = get[nodev1.Record](tx, bucketRecords, key(vm)); err != nil {
			return err
		}
		if s.Store, err = stateOf(tx); err != nil {
			return err
		}
		if asked.PendingDeletions {
			if s.PendingDeletions, err = pendingOf(tx, vm); err != nil {
				return err
			}
		}
		s.Named, err = get[nodev1.Operation](tx, bucketOperations, []byte(asked.Operation))
		return err
	})
	if err != nil {
		return transition.State{}, fmt.Errorf("load record of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return s, nil
}

// Apply implements Store.
func (b *Bolt) Apply(_ context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	var rec *nodev1.Record
	err := b.update(func(tx *bolt.Tx) error {
		now, err := current(tx, vm, version, change)
		if err != nil {
			return err
		}
		rec = proto.CloneOf(change.Record)
		if err := putPending(tx, change.PendingDeletions); err != nil {
			return err
		}
		if rec == nil {
			return errors.Join(remove(tx, vm, now.GetOperation()), putEntries(tx, key(vm), now, nil))
		}
		// One sequence for all records: a removed and remade record repeats no version.
		if rec.Version, err = tx.Bucket(bucketRecords).NextSequence(); err != nil {
			return err
		}
		if err := put(tx, bucketRecords, key(vm), rec); err != nil {
			return err
		}
		return errors.Join(putEntries(tx, key(vm), now, rec), putOperations(tx, rec, change.Closed))
	})
	if err != nil {
		return nil, fmt.Errorf("store record of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return rec, nil
}

// current answers the record that a change would replace, unless the change is refused: the
// record has another version, or the operation another's id. Nothing is written before it.
func current(tx *bolt.Tx, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record, error) {
	now, err := get[nodev1.Record](tx, bucketRecords, key(vm))
	if err != nil {
		return nil, err
	}
	if now.GetVersion() != version {
		return nil, fmt.Errorf("version is %d, not %d: %w", now.GetVersion(), version, errdefs.ErrConflict)
	}
	state, err := stateOf(tx)
	if err == nil {
		err = under(state, change.Under)
	}
	if err != nil {
		return nil, err
	}
	op := change.Record.GetOperation()
	if op == nil {
		return now, nil
	}
	old, err := get[nodev1.Operation](tx, bucketOperations, []byte(op.GetId()))
	if err == nil && old != nil && (!proto.Equal(old.GetVm(), op.GetVm()) || transition.Settled(old.GetPhase())) {
		err = fmt.Errorf("operation id %s is taken: %w", op.GetId(), errdefs.ErrAlreadyExists)
	}
	return now, err
}

func putOperations(tx *bolt.Tx, rec *nodev1.Record, closed *nodev1.Operation) error {
	if closed != nil {
		if err := put(tx, bucketOperations, []byte(closed.GetId()), closed); err != nil {
			return err
		}
		if err := remember(tx, rec.GetVm(), closed.GetId()); err != nil {
			return err
		}
	}
	op := rec.GetOperation()
	if op == nil {
		return nil
	}
	return put(tx, bucketOperations, []byte(op.GetId()), op)
}

// List implements Store.
func (b *Bolt) List(_ context.Context, after string, room int) (all []*nodev1.Record, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		c, size := tx.Bucket(bucketRecords).Cursor(), 0
		for k, v := c.Seek([]byte(after)); k != nil && (room == 0 || size <= room); k, v = c.Next() {
			if string(k) == after {
				continue
			}
			rec := new(nodev1.Record)
			if err := proto.Unmarshal(v, rec); err != nil {
				return fmt.Errorf("decode %q: %w: %w", k, err, errdefs.ErrDataLoss)
			}
			all, size = append(all, rec), size+len(v)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	return all, nil
}

// Operation implements Store.
func (b *Bolt) Operation(_ context.Context, id string) (op *nodev1.Operation, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		op, err = get[nodev1.Operation](tx, bucketOperations, []byte(id))
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("load operation %s: %w", id, err)
	case op == nil:
		return nil, fmt.Errorf("operation %s: %w", id, errdefs.ErrNotFound)
	}
	return op, nil
}

// message is a pointer to T that is a protobuf message.
type message[T any] interface {
	*T
	proto.Message
}

// get answers nil where there is nothing.
func get[T any, M message[T]](tx *bolt.Tx, bucket, key []byte) (M, error) {
	v := tx.Bucket(bucket).Get(key)
	if v == nil {
		return nil, nil
	}
	m := M(new(T))
	if err := proto.Unmarshal(v, m); err != nil {
		return nil, fmt.Errorf("decode %q: %w: %w", key, err, errdefs.ErrDataLoss)
	}
	return m, nil
}

func put(tx *bolt.Tx, bucket, key []byte, m proto.Message) error {
	v, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %q: %w", key, err)
	}
	return tx.Bucket(bucket).Put(key, v)
}
