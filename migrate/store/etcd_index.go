package store

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	etcd "go.etcd.io/etcd/client/v3"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func (e *Etcd) indexedKey() string { return e.prefix + "indexed" }

// List implements Store.
func (e *Etcd) List(ctx context.Context, after string, room int) (records []*nodev1.Record, err error) {
	size, pages := 0, newPager(e.prefix+"records/", after)
	if known := e.pace.Load(); known != nil && after != "" { // the rest of a list, as a rule
		pages.pace = *known
	}
	pages.room = int64(room)
	err = e.each(ctx, pages, func(some []*mvccpb.KeyValue, _ int64) (bool, error) {
		for i := range some {
			rec, err := recordOf(some[i : i+1])
			if err != nil {
				return false, err
			}
			records = append(records, rec)
			if size += len(some[i].Value); room > 0 && size > room {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	if pages.pace.width != nil {
		e.pace.Store(&pages.pace)
	}
	return records, nil
}

// Find implements Store.
func (e *Etcd) Find(ctx context.Context, which Which) (found Found, err error) {
	has := which.has()
	also := []etcd.Op{etcd.OpGet(e.prefix + keyState)}
	if which.Deleter != "" {
		also = append(also, etcd.OpGet(e.key("index", []byte(deleterName(which.Deleter))), etcd.WithPrefix(),
			etcd.WithCountOnly()))
	}
	entries, err := e.indexed(ctx, which.names(), also...)
	if err == nil {
		found.State, err = e.stateOf(entries.also, 0)
	}
	switch {
	case err != nil:
	case !entries.read:
		found.Records, err = e.List(ctx, "", 0)
		found.Records = slices.DeleteFunc(found.Records, func(r *nodev1.Record) bool { return !has(r) })
	default:
		if which.Deleter != "" {
			deletions := entries.also.Responses[1].GetResponseRange().GetCount() > 0
			found.HasDeletions = &deletions
		}
		err = e.get(ctx, "records", entries.keys, func(kvs []*mvccpb.KeyValue) error {
			rec, err := recordOf(kvs)
			if rec != nil && has(rec) {
				found.Records = append(found.Records, rec)
			}
			return err
		})
	}
	if err != nil {
		return Found{}, fmt.Errorf("find records: %w", err)
	}
	return found, nil
}

// PendingDeletions implements Store.
func (e *Etcd) PendingDeletions(ctx context.Context, which WhichDeletions) (pendingList []*nodev1.Owed, err error) {
	take := func(found []*mvccpb.KeyValue) error {
		o, err := first[nodev1.Owed](found)
		if o != nil && which.Has(o) {
			pendingList = append(pendingList, o)
		}
		return err
	}
	kind, entries := "owed/", entriesFound{}
	if which.VM != nil {
		kind += string(prefix(which.VM))
	} else if which.Deleter != "" {
		entries, err = e.indexed(ctx, []string{deleterName(which.Deleter)})
	}
	switch {
	case err != nil:
	case entries.read:
		err = e.get(ctx, "owed", entries.keys, take)
	default:
		var found []*mvccpb.KeyValue
		found, err = e.list(ctx, kind, "")
		for i := 0; err == nil && i < len(found); i++ {
			err = take(found[i : i+1])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list pending deletions: %w", err)
	}
	return pendingList, nil
}

// entriesFound are what the index has under some names.
type entriesFound struct {
	keys []string          // each once and in order
	read bool              // the index is one that is read
	also *etcd.TxnResponse // its first answers are those of the reads that go with them
}

// indexed looks some names up in the index, with other reads in the same view.
func (e *Etcd) indexed(ctx context.Context, names []string, also ...etcd.Op) (found entriesFound, err error) {
	ops := append(slices.Clone(also), etcd.OpGet(e.indexedKey(), etcd.WithKeysOnly()))
	for _, n := range names {
		ops = append(ops, etcd.OpGet(e.key("index", []byte(n)), etcd.WithPrefix()))
	}
	skip := len(also)
	for some := range slices.Chunk(ops, parallelOps) {
		resp, err := e.txn(ctx, nil, some, nil)
		if err != nil {
			return entriesFound{}, err
		}
		if found.also == nil {
			found.also = resp
		}
		for i := skip; i < len(some); i++ {
			for _, kv := range kvs(resp, i) {
				if string(kv.Key) == e.indexedKey() {
					found.read = true
					continue
				}
				found.keys = append(found.keys, string(kv.Value))
			}
		}
		skip = 0
	}
	slices.Sort(found.keys)
	found.keys = slices.Compact(found.keys)
	return found, nil
}

// get reads keys of a kind, abreast. What has gone since it was found is nothing.
func (e *Etcd) get(ctx context.Context, kind string, keys []string, take func([]*mvccpb.KeyValue) error) error {
	for some := range slices.Chunk(keys, parallelOps) {
		var ops []etcd.Op
		for _, k := range some {
			ops = append(ops, etcd.OpGet(e.key(kind, []byte(k))))
		}
		resp, err := e.txn(ctx, nil, ops, nil)
		if err != nil {
			return err
		}
		for i := range some {
			if err := take(kvs(resp, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// index writes what changes of a record's entries.
func (w *write) index(key []byte, before, after *nodev1.Record) {
	gone, come := entryChange(key, before, after)
	for _, entry := range gone {
		w.delete(w.e.key("index", []byte(entry)))
	}
	for _, entry := range come {
		w.then = append(w.then, etcd.OpPut(w.e.key("index", []byte(entry)), string(key)))
	}
}

// Clear implements Store.
func (e *Etcd) Clear(ctx context.Context, vm *nodev1.VM, repository, digest string) error {
	k := e.key("owed", pendingKey(vm, repository, digest))
	resp, err := e.txn(ctx, nil, []etcd.Op{etcd.OpGet(k)}, nil)
	if err == nil {
		var o *nodev1.Owed
		ops := []etcd.Op{etcd.OpDelete(k)}
		if o, err = first[nodev1.Owed](kvs(resp, 0)); o != nil {
			ops = append(ops, etcd.OpDelete(e.key("index", []byte(pendingEntry(o)))))
		}
		if err == nil {
			_, err = e.txn(ctx, nil, ops, nil)
		}
	}
	if err != nil {
		return fmt.Errorf("clear snapshot %s of VM %s/%s: %w", digest, vm.GetNamespace(), vm.GetId(), err)
	}
	return nil
}
