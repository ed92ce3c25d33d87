package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	etcd "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// txn asks the leader. Of a transaction whose answer is an error it may not be known
// whether it was made: the caller looks again, as after every other lost answer.
func (e *Etcd) txn(ctx context.Context, ifs []etcd.Cmp, then, otherwise []etcd.Op) (*etcd.TxnResponse, error) {
	bound, cancel := context.WithTimeout(etcd.WithRequireLeader(ctx), etcdBound)
	defer cancel()
	resp, err := e.client.Txn(bound).If(ifs...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return nil, e.failed(ctx, err)
	}
	return resp, nil
}

// list reads the keys of a kind that come after one of them (empty: all), as they are at one
// revision.
func (e *Etcd) list(ctx context.Context, kind, after string) (found []*mvccpb.KeyValue, err error) {
	err = e.each(ctx, newPager(e.prefix+kind, after), func(some []*mvccpb.KeyValue, _ int64) (bool, error) {
		found = append(found, some...)
		return true, nil
	})
	return found, err
}

// each reads page by page, for as long as more says so. The revision is that of all pages.
func (e *Etcd) each(ctx context.Context, p *pager, more func([]*mvccpb.KeyValue, int64) (bool, error)) error {
	revision := int64(0)
	for {
		to := p.to()
		bound, cancel := context.WithTimeout(etcd.WithRequireLeader(ctx), etcdBound)
		resp, err := e.client.Get(bound, p.from, etcd.WithRange(to), etcd.WithLimit(p.limit()), etcd.WithRev(revision))
		cancel()
		if err != nil {
			return e.failed(ctx, err)
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		left := p.took(resp.Kvs, to, resp.More)
		if goOn, err := more(resp.Kvs, revision); err != nil || !goOn || !left {
			return err
		}
	}
}

// failed gives an error of etcd its class.
func (e *Etcd) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ask etcd at %s: %w", e.endpoints, ctx.Err())
	}
	code := status.Code(err)
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		code = known.Code()
	}
	var class error = errdefs.ErrUnavailable
	switch code {
	case codes.ResourceExhausted: // its space quota
		class = errdefs.ErrResourceExhausted
	case codes.PermissionDenied:
		class = errdefs.ErrPermissionDenied
	case codes.Unauthenticated:
		class = errdefs.ErrUnauthenticated
	case codes.InvalidArgument: // more than --max-txn-ops or --max-request-bytes allow
		class = errdefs.ErrFailedPrecondition
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("etcd at %s (controller.etcd.endpoints) does not answer within %v: %w", e.endpoints,
			etcdBound, class)
	}
	return fmt.Errorf("ask etcd at %s: %w: %w", e.endpoints, class, err)
}

// kvs answers what the transaction's read at i has found.
func kvs(resp *etcd.TxnResponse, i int) []*mvccpb.KeyValue {
	return resp.Responses[i].GetResponseRange().GetKvs()
}

// value answers that of the one key which the read at i was for.
func value(resp *etcd.TxnResponse, i int) []byte {
	if found := kvs(resp, i); len(found) > 0 {
		return found[0].Value
	}
	return nil
}
