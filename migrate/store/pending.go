package store

import (
	"bytes"
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func pendingKey(vm *nodev1.VM, repository, digest string) []byte {
	return append(prefix(vm), repository+"\x00"+digest...)
}

// pendingOf answers the pending deletions of a VM.
func pendingOf(tx *bolt.Tx, vm *nodev1.VM) (all []*nodev1.Owed, err error) {
	p := prefix(vm)
	c := tx.Bucket(bucketPending).Cursor()
	for k, _ := c.Seek(p); bytes.HasPrefix(k, p); k, _ = c.Next() {
		o, err := get[nodev1.Owed](tx, bucketPending, k)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// Clear implements Store.
func (b *Bolt) Clear(_ context.Context, vm *nodev1.VM, repository, digest string) error {
	err := b.update(func(tx *bolt.Tx) error { return clearPending(tx, pendingKey(vm, repository, digest)) })
	if err != nil {
		return fmt.Errorf("clear snapshot %s of VM %s/%s: %w", digest, vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}
