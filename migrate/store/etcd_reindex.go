package store

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	etcd "go.etcd.io/etcd/client/v3"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var _ Shared = (*Etcd)(nil)

// Reindex implements Shared. What is being changed meanwhile gets its entries from the process
// that changes it: all who write keep the index, also while it is not read.
func (e *Etcd) Reindex(ctx context.Context, all bool) error {
	resp, err := e.txn(ctx, nil, []etcd.Op{etcd.OpGet(e.indexedKey(), etcd.WithKeysOnly())}, nil)
	if err == nil {
		switch there := len(kvs(resp, 0)) > 0; {
		case there && !all:
			_, err = e.txn(ctx, nil, []etcd.Op{etcd.OpDelete(e.indexedKey())}, nil)
		case !there && all:
			err = e.reindex(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("index the records: %w", err)
	}
	return nil
}

// item is a record or a pending deletion as it was read, and the entries that it should have.
type item struct {
	kind     string // "records" or "owed"
	key      string // in etcd
	revision int64  // 0: it is not there
	value    string // of its entries
	entries  []string
	there    int  // how many of them the index has
	gone     bool // the entries are to go
}

func (e *Etcd) reindex(ctx context.Context) error {
	items := map[string]*item{} // by key
	for _, kind := range []string{"records", "owed"} {
		err := e.each(ctx, newPager(e.prefix+kind+"/", ""), func(some []*mvccpb.KeyValue, _ int64) (bool, error) {
			for i, kv := range some {
				names, err := entriesOf(kind, some[i:i+1])
				if err != nil {
					return false, err
				}
				k := string(kv.Key)
				items[k] = &item{kind: kind, key: k, revision: kv.ModRevision, value: k[len(e.prefix)+len(kind)+1:], entries: names}
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	stale, err := e.stale(ctx, items)
	if err != nil {
		return err
	}
	for _, i := range items {
		if i.there < len(i.entries) {
			stale = append(stale, i)
		}
	}
	for some := range slices.Chunk(stale, reindexed) {
		if err := e.settle(ctx, some); err != nil {
			return err
		}
	}
	_, err = e.txn(ctx, nil, []etcd.Op{etcd.OpPut(e.indexedKey(), "")}, nil)
	return err
}

// entriesOf are the entries that a record or a pending deletion should have; none of what is not there.
func entriesOf(kind string, found []*mvccpb.KeyValue) ([]string, error) {
	if kind == "owed" {
		o, err := first[nodev1.Owed](found)
		if o == nil {
			return nil, err
		}
		return []string{pendingEntry(o)}, nil
	}
	rec, err := recordOf(found)
	_, come := entryChange(key(rec.GetVm()), nil, rec)
	return come, err
}

// reindexed is how many records get their entries in one transaction.
const reindexed = 16

// stale answers the entries of the index that nothing which was read should have, and counts those
// that an item should have. Of an item that has all of its entries nothing is written: the index was
// read after it, and who has changed it meanwhile writes the entries that its change makes other.
// So a restart of the controllers costs the index two lists and no write.
func (e *Etcd) stale(ctx context.Context, items map[string]*item) (all []*item, err error) {
	head := len(e.prefix) + len("index/")
	err = e.each(ctx, newPager(e.prefix+"index/", ""), func(some []*mvccpb.KeyValue, _ int64) (bool, error) {
		for _, kv := range some {
			entry, kind := string(kv.Key[head:]), "records"
			if len(entry) > len(ofDeleter) && entry[:len(ofDeleter)] == ofDeleter {
				kind = "owed"
			}
			k := e.key(kind, kv.Value)
			if of := items[k]; of == nil {
				all = append(all, &item{kind: kind, key: k, entries: []string{entry}, gone: true})
			} else if slices.Contains(of.entries, entry) {
				of.there++
			} else {
				all = append(all, &item{kind: kind, key: k, revision: of.revision, entries: []string{entry}, gone: true})
			}
		}
		return true, nil
	})
	return all, err
}

// settle writes or removes entries of what is as it was read. If one of several has changed, each
// is tried for itself, as it is by then.
func (e *Etcd) settle(ctx context.Context, some []*item) error {
	w := &write{e: e}
	for _, i := range some {
		w.unchanged(i.key, i.revision)
		for _, entry := range i.entries {
			if k := e.key("index", []byte(entry)); i.gone {
				w.delete(k)
			} else {
				w.then = append(w.then, etcd.OpPut(k, i.value))
			}
		}
	}
	resp, err := e.txn(ctx, w.ifs, nested(w.then), nil)
	if err != nil || resp.Succeeded {
		return err
	}
	for _, i := range some {
		now, err := e.again(ctx, i)
		if err == nil && now != nil {
			err = e.settle(ctx, []*item{now})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// again reads an item anew; nil: nothing is to be written. Who has changed it has written the
// entries that its change made other, and none that it should have had before.
func (e *Etcd) again(ctx context.Context, i *item) (*item, error) {
	resp, err := e.txn(ctx, nil, []etcd.Op{etcd.OpGet(i.key)}, nil)
	if err != nil {
		return nil, err
	}
	names, err := entriesOf(i.kind, kvs(resp, 0))
	now := *i
	if now.revision, now.entries = revision(kvs(resp, 0)), names; i.gone {
		now.entries = slices.DeleteFunc(slices.Clone(i.entries), func(entry string) bool {
			return slices.Contains(names, entry)
		})
	}
	if err != nil || len(now.entries) == 0 {
		return nil, err
	}
	return &now, nil
}
