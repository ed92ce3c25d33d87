package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Note implements Notes.
func (b *Bolt) Note(_ context.Context, kind, key string, value []byte) error {
	k := []byte(kind + "\x00" + key)
	err := b.db.Update(func(tx *bolt.Tx) error {
		if value == nil {
			return tx.Bucket(bucketNotes).Delete(k)
		}
		return tx.Bucket(bucketNotes).Put(k, value)
	})
	if err != nil {
		return fmt.Errorf("note %s %s: %w", kind, key, err)
	}
	return nil
}

// Notes implements Notes.
func (b *Bolt) Notes(_ context.Context, kind string) (all []Note, err error) {
	prefix := []byte(kind + "\x00")
	err = b.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketNotes).Cursor()
		for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			all = append(all, Note{Key: string(k[len(prefix):]), Value: slices.Clone(v)})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read notes of %s: %w", kind, err)
	}
	return all, nil
}
