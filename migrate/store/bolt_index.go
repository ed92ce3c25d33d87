package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Find implements Store.
func (b *Bolt) Find(_ context.Context, which Which) (found Found, err error) {
	has := which.has()
	err = b.db.View(func(tx *bolt.Tx) (err error) {
		if found.State, err = stateOf(tx); err != nil {
			return err
		}
		if which.Deleter != "" {
			p := []byte(deleterName(which.Deleter))
			k, _ := tx.Bucket(bucketIndex).Cursor().Seek(p)
			deletions := bytes.HasPrefix(k, p)
			found.HasDeletions = &deletions
		}
		for _, k := range indexed(tx, which.names()) {
			rec, err := get[nodev1.Record](tx, bucketRecords, k)
			if err != nil {
				return err
			}
			if rec != nil && has(rec) {
				found.Records = append(found.Records, rec)
			}
		}
		return nil
	})
	if err != nil {
		return Found{}, fmt.Errorf("find records: %w", err)
	}
	return found, nil
}

// indexed answers the keys that the index has under these names, each once and in order.
func indexed(tx *bolt.Tx, names []string) (keys [][]byte) {
	c := tx.Bucket(bucketIndex).Cursor()
	for _, name := range names {
		p := []byte(name)
		for k, v := c.Seek(p); bytes.HasPrefix(k, p); k, v = c.Next() {
			keys = append(keys, v)
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}

func putEntries(tx *bolt.Tx, key []byte, before, after *nodev1.Record) error {
	gone, come := entryChange(key, before, after)
	for _, e := range gone {
		if err := tx.Bucket(bucketIndex).Delete([]byte(e)); err != nil {
			return err
		}
	}
	for _, e := range come {
		if err := tx.Bucket(bucketIndex).Put([]byte(e), key); err != nil {
			return err
		}
	}
	return nil
}

// reindex makes the index anew.
func reindex(tx *bolt.Tx) error {
	if err := tx.DeleteBucket(bucketIndex); err != nil {
		return err
	}
	if _, err := tx.CreateBucket(bucketIndex); err != nil {
		return err
	}
	err := tx.Bucket(bucketRecords).ForEach(func(k, _ []byte) error {
		rec, err := get[nodev1.Record](tx, bucketRecords, k)
		if err != nil {
			return err
		}
		return putEntries(tx, slices.Clone(k), nil, rec)
	})
	if err != nil {
		return err
	}
	return tx.Bucket(bucketPending).ForEach(func(k, _ []byte) error {
		o, err := get[nodev1.Owed](tx, bucketPending, k)
		if err != nil {
			return err
		}
		return tx.Bucket(bucketIndex).Put([]byte(pendingEntry(o)), slices.Clone(k))
	})
}

// putPending notes pending deletions. One that was there under another deleter is moved to the new one.
func putPending(tx *bolt.Tx, pendingList []*nodev1.Owed) error {
	for _, o := range pendingList {
		if err := clearPending(tx, keyOf(o)); err != nil {
			return err
		}
		if err := put(tx, bucketPending, keyOf(o), o); err != nil {
			return err
		}
		if err := tx.Bucket(bucketIndex).Put([]byte(pendingEntry(o)), keyOf(o)); err != nil {
			return err
		}
	}
	return nil
}

func clearPending(tx *bolt.Tx, key []byte) error {
	o, err := get[nodev1.Owed](tx, bucketPending, key)
	if err != nil || o == nil {
		return err
	}
	if err := tx.Bucket(bucketIndex).Delete([]byte(pendingEntry(o))); err != nil {
		return err
	}
	return tx.Bucket(bucketPending).Delete(key)
}

// PendingDeletions implements Store.
func (b *Bolt) PendingDeletions(_ context.Context, which WhichDeletions) (all []*nodev1.Owed, err error) {
	take := func(k, v []byte) error {
		o := new(nodev1.Owed)
		if err := proto.Unmarshal(v, o); err != nil {
			return fmt.Errorf("decode %q: %w", k, err)
		}
		if which.Has(o) {
			all = append(all, o)
		}
		return nil
	}
	err = b.db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(bucketPending)
		if which.VM == nil && which.Deleter != "" {
			for _, k := range indexed(tx, []string{deleterName(which.Deleter)}) {
				if v := bucket.Get(k); v != nil {
					if err := take(k, v); err != nil {
						return err
					}
				}
			}
			return nil
		}
		p := []byte(nil)
		if which.VM != nil {
			p = prefix(which.VM)
		}
		c := bucket.Cursor()
		for k, v := c.Seek(p); k != nil && bytes.HasPrefix(k, p); k, v = c.Next() {
			if err := take(k, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pending deletions: %w", err)
	}
	return all, nil
}
