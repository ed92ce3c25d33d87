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
func (e *Etcd) Find(ctx context.Context, which Which) ([]*nodev1.Record, error) {
	has := which.has()
	keys, ok, err := e.indexed(ctx, which.names())
	if err == nil && !ok {
		all, err := e.List(ctx, "", 0)
		return slices.DeleteFunc(all, func(r *nodev1.Record) bool { return !has(r) }), err
	}
	var all []*nodev1.Record
	if err == nil {
		err = e.get(ctx, "records", keys, func(found []*mvccpb.KeyValue) error {
			rec, err := recordOf(found)
			if rec != nil && has(rec) {
				all = append(all, rec)
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("find records: %w", err)
	}
	return all, nil
}

// Owed implements Store.
func (e *Etcd) Owed(ctx context.Context, which Debts) (owed []*nodev1.Owed, err error) {
	take := func(found []*mvccpb.KeyValue) error {
		o, err := first[nodev1.Owed](found)
		if o != nil && which.Has(o) {
			owed = append(owed, o)
		}
		return err
	}
	kind, keys, ok := "owed/", []string(nil), false
	if which.VM != nil {
		kind += string(prefix(which.VM))
	} else if which.Payer != "" {
		keys, ok, err = e.indexed(ctx, []string{ofPayer + which.Payer + "\x00"})
	}
	switch {
	case err != nil:
	case ok:
		err = e.get(ctx, "owed", keys, take)
	default:
		var found []*mvccpb.KeyValue
		found, err = e.list(ctx, kind, "")
		for i := 0; err == nil && i < len(found); i++ {
			err = take(found[i : i+1])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list what is owed: %w", err)
	}
	return owed, nil
}

// indexed answers the keys that the index has under these names, each once and in order; not ok:
// it is not one that is read.
func (e *Etcd) indexed(ctx context.Context, names []string) (keys []string, ok bool, err error) {
	ops := []etcd.Op{etcd.OpGet(e.indexedKey(), etcd.WithKeysOnly())}
	for _, n := range names {
		ops = append(ops, etcd.OpGet(e.key("index", []byte(n)), etcd.WithPrefix()))
	}
	for some := range slices.Chunk(ops, abreast) {
		resp, err := e.txn(ctx, nil, some, nil)
		if err != nil {
			return nil, false, err
		}
		for i := range some {
			for _, kv := range kvs(resp, i) {
				if string(kv.Key) == e.indexedKey() {
					ok = true
					continue
				}
				keys = append(keys, string(kv.Value))
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), ok, nil
}

// get reads keys of a kind, abreast. What has gone since it was found is nothing.
func (e *Etcd) get(ctx context.Context, kind string, keys []string, take func([]*mvccpb.KeyValue) error) error {
	for some := range slices.Chunk(keys, abreast) {
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
	k := e.key("owed", owedKey(vm, repository, digest))
	resp, err := e.txn(ctx, nil, []etcd.Op{etcd.OpGet(k)}, nil)
	if err == nil {
		var o *nodev1.Owed
		ops := []etcd.Op{etcd.OpDelete(k)}
		if o, err = first[nodev1.Owed](kvs(resp, 0)); o != nil {
			ops = append(ops, etcd.OpDelete(e.key("index", []byte(debtEntry(o)))))
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
