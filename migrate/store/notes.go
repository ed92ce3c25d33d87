package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
)

func noteKey(kind, key string) []byte { return []byte(kind + "\x00" + key) }

// Note implements Notes.
func (b *Bolt) Note(_ context.Context, kind, key string, value []byte) error {
	return b.note(kind, key, func(bucket *bolt.Bucket, k []byte) error {
		if value == nil {
			return bucket.Delete(k)
		}
		return bucket.Put(k, value)
	})
}

// NoteNew implements Notes.
func (b *Bolt) NoteNew(_ context.Context, kind, key string, value []byte) error {
	return b.note(kind, key, func(bucket *bolt.Bucket, k []byte) error {
		if bucket.Get(k) != nil {
			return errdefs.ErrAlreadyExists
		}
		return bucket.Put(k, value)
	})
}

func (b *Bolt) note(kind, key string, change func(*bolt.Bucket, []byte) error) error {
	err := b.update(func(tx *bolt.Tx) error { return change(tx.Bucket(bucketNotes), noteKey(kind, key)) })
	if err != nil {
		return fmt.Errorf("note %s %s: %w", kind, key, err)
	}
	return nil
}

// NoteOf implements Notes.
func (b *Bolt) NoteOf(_ context.Context, kind, key string) (value []byte, there bool, err error) {
	err = b.db.View(func(tx *bolt.Tx) error {
		found := tx.Bucket(bucketNotes).Get(noteKey(kind, key))
		value, there = slices.Clone(found), found != nil
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("read note %s %s: %w", kind, key, err)
	}
	return value, there, nil
}

// Notes implements Notes.
func (b *Bolt) Notes(_ context.Context, kind, after string) (all []Note, err error) {
	prefix, from := noteKey(kind, ""), noteKey(kind, after)
	err = b.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketNotes).Cursor()
		for k, v := c.Seek(from); bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if !bytes.Equal(k, from) {
				all = append(all, Note{Key: string(k[len(prefix):]), Value: slices.Clone(v)})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read notes of %s: %w", kind, err)
	}
	return all, nil
}
