package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/mvccpb"
	etcd "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Apply implements Store. Each change of the VM's record changes its revision, which the
// transaction compares. Another VM can only take the operation's id meanwhile, which it compares
// too.
func (e *Etcd) Apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	rec, err := e.apply(ctx, vm, version, change)
	if err != nil {
		return nil, fmt.Errorf("store record of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return rec, nil
}

func (e *Etcd) apply(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (*nodev1.Record,
	error) {
	for {
		ifs, then, err := e.changes(ctx, vm, version, change)
		if err != nil {
			return nil, err
		}
		resp, err := e.txn(ctx, ifs, nested(then), nil)
		if err != nil {
			return nil, err
		}
		if !resp.Succeeded {
			continue // changes finds out which of both it was
		}
		rec := proto.CloneOf(change.Record)
		if rec != nil {
			rec.Version = uint64(resp.Header.Revision)
		}
		return rec, nil
	}
}

// parallelOps is how much of a transaction lies side by side: etcd takes 128 (--max-txn-ops).
const parallelOps = 64

// nested is what a transaction does, in transactions within it where it is much: each counts as
// one there. All of it is one write still.
func nested(ops []etcd.Op) (all []etcd.Op) {
	if len(ops) <= parallelOps {
		return ops
	}
	for some := range slices.Chunk(ops, parallelOps) {
		all = append(all, etcd.OpTxn(nil, some, nil))
	}
	return all
}

// changes answers the transaction that makes change, as far as it may be made now.
func (e *Etcd) changes(ctx context.Context, vm *nodev1.VM, version uint64, change transition.Change) (ifs []etcd.Cmp,
	then []etcd.Op, err error) {
	record, op := e.key("records", key(vm)), change.Record.GetOperation()
	resp, err := e.txn(ctx, nil, []etcd.Op{
		etcd.OpGet(record),
		etcd.OpGet(e.operation(op.GetId())),
		etcd.OpGet(e.key("closed", prefix(vm)), etcd.WithPrefix()),
		etcd.OpGet(e.prefix+keyState, etcd.WithKeysOnly()),
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	if now := revision(kvs(resp, 0)); uint64(now) != version {
		return nil, nil, fmt.Errorf("version is %d, not %d: %w", now, version, errdefs.ErrConflict)
	}
	before, err := recordOf(kvs(resp, 0))
	if err == nil {
		err = under(&nodev1.StoreState{Version: uint64(revision(kvs(resp, 3)))}, change.Under)
	}
	if err != nil {
		return nil, nil, err
	}
	w := &write{e: e}
	w.unchanged(record, int64(version))
	w.index(key(vm), before, change.Record)
	w.unchanged(e.prefix+keyState, int64(change.Under))
	for _, o := range change.PendingDeletions {
		w.put(e.key("owed", keyOf(o)), o)
		w.then = append(w.then, etcd.OpPut(e.key("index", []byte(pendingEntry(o))), string(keyOf(o))))
	}
	if change.Record == nil {
		w.delete(record)
		if open := before.GetOperation(); open != nil {
			w.delete(e.operation(open.GetId()))
		}
		w.forget(kvs(resp, 2))
		return w.ifs, w.then, w.err
	}
	w.put(record, change.Record)
	if closed := change.Closed; closed != nil {
		w.put(e.operation(closed.GetId()), closed)
		history := kvs(resp, 2)
		w.forget(history[:max(0, len(history)+1-Kept)])
		w.then = append(w.then, etcd.OpPut(e.key("closed", binary.BigEndian.AppendUint64(prefix(vm), version)),
			closed.GetId()))
	}
	if op != nil {
		w.open(op, kvs(resp, 1))
	}
	return w.ifs, w.then, w.err
}

// write is a transaction in the making; its first error stays.
type write struct {
	e    *Etcd
	ifs  []etcd.Cmp
	then []etcd.Op
	err  error
}

func (w *write) unchanged(key string, revision int64) {
	w.ifs = append(w.ifs, etcd.Compare(etcd.ModRevision(key), "=", revision))
}

func (w *write) put(key string, m proto.Message) {
	v, err := proto.Marshal(m)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("encode %q: %w", key, err)
	}
	w.then = append(w.then, etcd.OpPut(key, string(v)))
}

func (w *write) delete(key string) { w.then = append(w.then, etcd.OpDelete(key)) }

// forget drops closed operations from the VM's history.
func (w *write) forget(history []*mvccpb.KeyValue) {
	for _, kv := range history {
		w.delete(string(kv.Key))
		w.delete(w.e.operation(string(kv.Value)))
	}
}

// open stores the open operation, unless its id is another one's.
func (w *write) open(op *nodev1.Operation, before []*mvccpb.KeyValue) {
	old, err := first[nodev1.Operation](before)
	if err == nil && old != nil && (!proto.Equal(old.GetVm(), op.GetVm()) || transition.Settled(old.GetPhase())) {
		err = fmt.Errorf("operation id %s is taken: %w", op.GetId(), errdefs.ErrAlreadyExists)
	}
	if err != nil && w.err == nil {
		w.err = err
	}
	name := w.e.operation(op.GetId())
	w.unchanged(name, revision(before))
	w.put(name, op)
}

// revision is 0 for what is not there, as it is in etcd's comparisons.
func revision(found []*mvccpb.KeyValue) int64 {
	if len(found) == 0 {
		return 0
	}
	return found[0].ModRevision
}
