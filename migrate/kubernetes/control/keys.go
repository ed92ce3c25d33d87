package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var errNotBound = fmt.Errorf("the node has neither that VM, nor an operation or a deletion there: %w",
	errdefs.ErrPermissionDenied)

// needsNone refuses where no class has a Secret, and the record or the order has it that snapshots are sealed or
// signed: the class is gone. What the cache does not know yet is no proof that none are. A node that has nothing of the
// VM is told nothing of it.
func (p *Pods) needsNone(ctx context.Context, q loginAsk) error {
	if q.use == nodev1.Use_USE_STORE {
		return nil
	}
	all, err := p.known(ctx, q.uid)
	if err != nil {
		return err
	}
	if len(all) == 0 && record.IsUID(q.uid) {
		return fmt.Errorf("keys for %s: no record of that VM is known here yet: %w", q.repository, errdefs.ErrUnavailable)
	}
	for _, k := range all {
		if !decide.GivenPlace(q.repository, k.rec, k.owed) {
			continue
		}
		may, err := p.mayOf(ctx, k.rec, k.owed, q.repository, q.may)
		if err != nil {
			return err
		}
		if !may {
			if keys, _ := decide.KeysOfRecord(k.rec, q.prefix); keys != (decide.Keys{}) {
				return fmt.Errorf("keys for %s: %w", q.repository, errNotBound)
			}
			continue
		}
		wants, _, err := p.keysOf(ctx, &k, q)
		if err != nil {
			return err
		}
		if why := decide.NoKeys(wants, q.prefix, nil); why != "" {
			return p.noKeys(ctx, k.vm, q, why)
		}
	}
	return nil
}

// keysOf are those with which snapshots are in a place: by the record where its own go, by the work order where one
// goes. Whichever classes there are has no say in that. made: snapshots are made there. Elsewhere they are read alone,
// and a work order that is gone says nothing.
func (p *Pods) keysOf(ctx context.Context, k *known, q loginAsk) (wants decide.Keys, made bool, err error) {
	if q.use == nodev1.Use_USE_STORE {
		return decide.Keys{}, true, nil
	}
	wants, made = decide.KeysOfRecord(k.rec, q.prefix)
	if op := k.rec.GetOperation(); op.GetPrefix() == q.prefix {
		ordered, there, err := p.ordered(ctx, op.GetId(), q.uid)
		if err == nil && !there {
			err = p.noKeys(ctx, k.vm, q, "the work order of operation "+op.GetId()+" is gone, and with it what says whether "+
				"its snapshot is sealed: abort the operation, and make another VMSnapshot")
		}
		if err != nil {
			return wants, true, err
		}
		wants, made = wants.With(ordered), true
	}
	if made {
		return wants, true, nil
	}
	for _, operation := range decide.OrderedIn(q.repository, k.rec, k.owed) {
		ordered, _, err := p.ordered(ctx, operation, q.uid)
		if err != nil {
			return wants, false, err
		}
		wants = wants.With(ordered)
	}
	return wants, false, nil
}

// ordered are the keys of the work order of an operation, read from the API server itself; false: there is none.
func (p *Pods) ordered(ctx context.Context, operation, uid string) (decide.Keys, bool, error) {
	order := &v1alpha1.VMSnapshotContent{}
	there, err := p.View.Get(ctx, types.NamespacedName{Name: decide.OrderName(types.UID(operation))}, order)
	if err != nil {
		return decide.Keys{}, false, unread(err)
	}
	if !there {
		order = nil
	}
	keys, of := decide.KeysOfOrder(order, operation, uid)
	return keys, of, nil
}

// noKeys tells why there are none, until that is mended.
func (p *Pods) noKeys(ctx context.Context, vm types.NamespacedName, q loginAsk, why string) error {
	p.tellNoSecret(ctx, vm, why)
	return fmt.Errorf("keys for %s: %s: %w", q.repository, why, errdefs.ErrUnavailable)
}
