package store

import (
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// remember adds id to the VM's history and forgets what is beyond Kept.
func remember(tx *bolt.Tx, vm *nodev1.VM, id string) error {
	bucket := tx.Bucket(bucketClosed)
	seq, err := bucket.NextSequence()
	if err != nil {
		return err
	}
	if err := bucket.Put(binary.BigEndian.AppendUint64(prefix(vm), seq), []byte(id)); err != nil {
		return err
	}
	keys := history(tx, vm)
	return forget(tx, keys[:max(0, len(keys)-Kept)])
}

func prefix(vm *nodev1.VM) []byte { return append(key(vm), 0) }

// history answers the keys of the VM's closed operations, oldest first.
func history(tx *bolt.Tx, vm *nodev1.VM) (keys [][]byte) {
	p := prefix(vm)
	c := tx.Bucket(bucketClosed).Cursor()
	for k, _ := c.Seek(p); len(k) == len(p)+8 && string(k[:len(p)]) == string(p); k, _ = c.Next() {
		keys = append(keys, append([]byte(nil), k...))
	}
	return keys
}

func forget(tx *bolt.Tx, keys [][]byte) error {
	for _, k := range keys {
		id := append([]byte(nil), tx.Bucket(bucketClosed).Get(k)...)
		if err := tx.Bucket(bucketOperations).Delete(id); err != nil {
			return err
		}
		if err := tx.Bucket(bucketClosed).Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// remove ends the record and the VM's history.
func remove(tx *bolt.Tx, vm *nodev1.VM, open *nodev1.Operation) error {
	if err := tx.Bucket(bucketRecords).Delete(key(vm)); err != nil {
		return err
	}
	if open != nil {
		if err := tx.Bucket(bucketOperations).Delete([]byte(open.GetId())); err != nil {
			return err
		}
	}
	return forget(tx, history(tx, vm))
}
