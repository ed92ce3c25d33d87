package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/mvccpb"
	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Etcd is the store in an etcd cluster, for controllers of which one may be lost. The
// version of a record is the revision of its key, so that every change is one transaction
// that compares it. Below the prefix of its configuration:
//
//	records/namespace NUL id        -> Record
//	operations/operation id         -> Operation, open and closed
//	closed/namespace NUL id NUL version -> operation id, oldest first
//	owed/namespace NUL id NUL repository NUL digest -> Owed
//	notes/kind/key                  -> whatever was noted
//	index/..                        -> what Find and PendingDeletions go by (index.go)
//	indexed                         -> there: the index is read
//	version                         -> decimal number of this format
//	incarnation                     -> StoreState
type Etcd struct {
	client    *etcd.Client
	prefix    string
	endpoints string
	pace      atomic.Pointer[pace] // of the last list of records
}

// etcdBound of one request. etcd elects a new leader within a second or two.
const etcdBound = 5 * time.Second

// etcdAlive is after how much silence a connection is asked whether it lives.
const etcdAlive = 10 * time.Second

// OpenEtcd connects, and refuses a store of another version.
func OpenEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	endpoints := strings.Join(cfg.Endpoints, ",")
	client, err := etcd.New(etcd.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Logger: zap.NewNop(),
		DialKeepAliveTime: etcdAlive, DialKeepAliveTimeout: etcdBound,
	})
	if err != nil {
		return nil, fmt.Errorf("open store in etcd %s: %w: %w", endpoints, errdefs.ErrInvalidArgument, err)
	}
	e := &Etcd{client: client, prefix: cfg.Prefix, endpoints: endpoints}
	if err := e.prepare(ctx); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	return e, nil
}

// prepare writes the version of a store that is new.
func (e *Etcd) prepare(ctx context.Context) error {
	mine, key := strconv.Itoa(version.Records), e.prefix+"version"
	resp, err := e.txn(ctx, []etcd.Cmp{etcd.Compare(etcd.CreateRevision(key), "=", 0)}, []etcd.Op{etcd.OpPut(key, mine)},
		[]etcd.Op{etcd.OpGet(key)})
	if err != nil || resp.Succeeded {
		return err
	}
	if v := value(resp, 0); string(v) != mine {
		return fmt.Errorf("%s in etcd is of version %.20q, this build knows %s: %w", e.prefix, v, mine,
			errdefs.ErrNotImplemented)
	}
	return nil
}

// Close the connection.
func (e *Etcd) Close() error { return e.client.Close() }

func (e *Etcd) key(kind string, name []byte) string { return e.prefix + kind + "/" + string(name) }

func (e *Etcd) operation(id string) string { return e.key("operations", []byte(id)) }

// Load implements Store.
func (e *Etcd) Load(ctx context.Context, vm *nodev1.VM, asked transition.Asked) (s transition.State, err error) {
	ops := []etcd.Op{
		etcd.OpGet(e.key("records", key(vm))),
		etcd.OpGet(e.operation(asked.Operation)),
		etcd.OpGet(e.prefix + keyState),
	}
	if asked.PendingDeletions {
		ops = append(ops, etcd.OpGet(e.key("owed", prefix(vm)), etcd.WithPrefix()))
	}
	resp, err := e.txn(ctx, nil, ops, nil)
	if err == nil {
		s.Record, err = recordOf(kvs(resp, 0))
	}
	if err == nil {
		s.Named, err = first[nodev1.Operation](kvs(resp, 1))
	}
	if err == nil {
		s.Store, err = e.stateOf(resp, 2)
	}
	if err == nil && asked.PendingDeletions {
		s.PendingDeletions, err = all[nodev1.Owed](kvs(resp, 3))
	}
	if err != nil {
		return transition.State{}, fmt.Errorf("load record of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
	}
	return s, nil
}

// Operation implements Store.
func (e *Etcd) Operation(ctx context.Context, id string) (*nodev1.Operation, error) {
	resp, err := e.txn(ctx, nil, []etcd.Op{etcd.OpGet(e.operation(id))}, nil)
	if err != nil {
		return nil, fmt.Errorf("load operation %s: %w", id, err)
	}
	op, err := first[nodev1.Operation](kvs(resp, 0))
	switch {
	case err != nil:
		return nil, fmt.Errorf("load operation %s: %w", id, err)
	case op == nil:
		return nil, fmt.Errorf("operation %s: %w", id, errdefs.ErrNotFound)
	}
	return op, nil
}

// recordOf gives a record the version that its key has.
func recordOf(found []*mvccpb.KeyValue) (*nodev1.Record, error) {
	rec, err := first[nodev1.Record](found)
	if rec != nil {
		rec.Version = uint64(found[0].ModRevision)
	}
	return rec, err
}

// first answers nil where there is nothing.
func first[T any, M message[T]](found []*mvccpb.KeyValue) (M, error) {
	if len(found) == 0 {
		return nil, nil
	}
	m := M(new(T))
	if err := proto.Unmarshal(found[0].Value, m); err != nil {
		return nil, fmt.Errorf("decode %q: %w: %w", found[0].Key, err, errdefs.ErrDataLoss)
	}
	return m, nil
}

func all[T any, M message[T]](found []*mvccpb.KeyValue) (out []M, err error) {
	for i := range found {
		m, err := first[T, M](found[i:])
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}
