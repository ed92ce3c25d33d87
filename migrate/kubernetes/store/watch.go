package store

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Event is one change of a record.
type Event struct {
	Number uint64 // of the change; those of later changes are larger
	VM     *nodev1.VM
	Record *nodev1.Record // nil: it was removed
}

// Watch tells each change of a record that came after a number, in their order, until ctx ends or tell fails. The
// numbers are those of Revision. It answers OutOfRange where the API server remembers less: what there is then is read
// by List, and the watch begins again from a new Revision.
func (s *Store) Watch(ctx context.Context, after uint64, tell func(Event) error) error {
	if after == 0 {
		return fmt.Errorf("watch records after 0: give a number of Revision: %w", errdefs.ErrInvalidArgument)
	}
	var events watch.Interface
	err := ask(ctx, func(context.Context) (err error) { // the bound of a try is none of the watch
		events, err = s.records.request(s.records.client.Get()).VersionedParams(&metav1.ListOptions{Watch: true,
			ResourceVersion: fmt.Sprint(after)}, metav1.ParameterCodec).Watch(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch records after %d: %w", after, err)
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case came, ok := <-events.ResultChan():
			if !ok {
				return fmt.Errorf("watch records: the API server has ended it: %w", errdefs.ErrUnavailable)
			}
			if err := one(came, tell); err != nil {
				return err
			}
		}
	}
}

// one tells an event of the API server. A touch, and what leaves no record where none was, is told as well: it is a
// change of the object, with the record as it is.
func one(came watch.Event, tell func(Event) error) error {
	if came.Type == watch.Error {
		return fmt.Errorf("watch records: %w", failed(apierrors.FromObject(came.Object)))
	}
	o, ok := came.Object.(*v1alpha1.VMRecord)
	if !ok {
		return fmt.Errorf("watch records: the API server tells of a %T: %w", came.Object, errdefs.ErrDataLoss)
	}
	n, err := version(o)
	if err != nil {
		return err
	}
	c, err := decode(o)
	if err != nil {
		return err
	}
	ev := Event{Number: n, VM: &nodev1.VM{Namespace: o.Spec.VM.Namespace, Id: o.Spec.VM.ID}, Record: c.record}
	if came.Type == watch.Deleted {
		ev.Record = nil
	}
	return tell(ev)
}
