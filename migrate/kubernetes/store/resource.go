package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strconv"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/internal/retry"
)

// object is one of the API server's.
type object interface {
	metav1.Object
	runtime.Object
}

// resource is a kind of objects, in a namespace or in none.
type resource[T object] struct {
	client    rest.Interface
	name      string
	namespace string
	empty     func() T
}

const (
	// written is the annotation that names the write which an object is of.
	written = "godwit.dev/write"
	// made names the write that has made the object.
	made = "godwit.dev/made"
	// strict is the parameter of a write that has unknown fields refused.
	strict = "fieldValidation"
)

// errOvertaken: an object was made, and another write has changed it before that was known.
var errOvertaken = fmt.Errorf("it was made, and then changed: %w", errdefs.ErrConflict)

func (r resource[T]) request(request *rest.Request) *rest.Request {
	// The client's own tries would hide that a write was sent twice.
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).MaxRetries(0)
}

// get reads an object by a quorum of etcd; there is false where the API server says that there is none.
func (r resource[T]) get(ctx context.Context, name string) (_ T, there bool, _ error) {
	found := r.empty()
	err := ask(ctx, func(ctx context.Context) error {
		return r.request(r.client.Get()).Name(name).Do(ctx).Into(found)
	})
	switch {
	case absent(err):
		return found, false, nil
	case err != nil:
		return found, false, err
	}
	return found, true, nil
}

// put makes an object durable if the API server's still has the version that it was made from, else it answers
// ErrConflict. Without a version there must be none. It answers the object as it is then.
//
// Each write has a token. Of a write whose answer was lost, the object says whether it was made (found).
func (r resource[T]) put(ctx context.Context, o T) (T, error) {
	token := mark(o)
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	unclear, tries := false, 0
	for {
		now, err := r.send(ctx, o)
		switch {
		case err == nil:
			return now, nil
		case refused(err) && !unclear:
			return now, failed(err)
		case !busy(err):
			unclear = true
			now, known, ferr := r.found(ctx, o, token)
			if known {
				return now, ferr
			}
		}
		if tries++; !sleep(ctx, err, tries) {
			return now, fmt.Errorf("%s %s: it is not known whether it was written: %w", r.name, o.GetName(), failed(err))
		}
	}
}

// mark gives a write its token.
func mark(o object) string {
	annotations, token := maps.Clone(o.GetAnnotations()), rand.Text()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[written] = token
	if o.GetResourceVersion() == "" {
		annotations[made] = token
	}
	o.SetAnnotations(annotations)
	return token
}

// found looks for what became of a write whose answer was lost. Where it is not known, the write may be tried again: it
// applies to one version of the object, and so once.
func (r resource[T]) found(ctx context.Context, o T, token string) (_ T, known bool, _ error) {
	now, there, err := r.get(ctx, o.GetName())
	switch {
	case err != nil:
		return now, false, nil
	case there && now.GetAnnotations()[written] == token:
		return now, true, nil
	case now.GetResourceVersion() == o.GetResourceVersion(): // also where neither is
		return now, false, nil
	case o.GetResourceVersion() != "":
		return r.next(ctx, o, token)
	case now.GetAnnotations()[made] == token:
		return now, true, errOvertaken
	}
	return now, true, fmt.Errorf("%s %s: %w", r.name, o.GetName(), errdefs.ErrAlreadyExists)
}

// next asks which write was the first after the version of o: all the others came later.
func (r resource[T]) next(ctx context.Context, o T, token string) (_ T, known bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, tryBound)
	defer cancel()
	events, err := r.request(r.client.Get()).VersionedParams(&metav1.ListOptions{Watch: true,
		FieldSelector: "metadata.name=" + o.GetName(), ResourceVersion: o.GetResourceVersion()}, metav1.ParameterCodec).
		Watch(ctx)
	if err != nil {
		return o, false, nil
	}
	defer events.Stop()
	came := <-events.ResultChan() // closed when ctx ends
	first, ok := came.Object.(T)
	switch {
	case !ok || came.Type != watch.Modified && came.Type != watch.Deleted:
		return o, false, nil
	case came.Type == watch.Modified && first.GetAnnotations()[written] == token:
		return first, true, nil
	}
	return first, true, fmt.Errorf("%s %s: another write came before: %w", r.name, o.GetName(), errdefs.ErrConflict)
}

// send is one try of put. A schema without a field of the object has the API server refuse it: by default that drops
// the field, and says that it has written.
func (r resource[T]) send(ctx context.Context, o T) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, tryBound)
	defer cancel()
	now := r.empty()
	if o.GetResourceVersion() == "" {
		return now, r.request(r.client.Post()).Param(strict, metav1.FieldValidationStrict).Body(o).Do(ctx).Into(now)
	}
	put := r.request(r.client.Put()).Param(strict, metav1.FieldValidationStrict)
	return now, put.Name(o.GetName()).Body(o).Do(ctx).Into(now)
}

// remove deletes an object if it still has the version of o. One that is not there is removed already.
func (r resource[T]) remove(ctx context.Context, o T) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := ask(ctx, func(ctx context.Context) error {
		return r.request(r.client.Delete()).Name(o.GetName()).Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &uid, ResourceVersion: &version}}).Do(ctx).Error()
	})
	if absent(err) {
		return nil
	}
	return err
}

// pages lists objects at one version. A list may take as long as the API server remembers that.
func pages[T object, L metav1.ListInterface](ctx context.Context, r resource[T], selector string,
	empty func() L, take func(L) error,
) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: page}
	for {
		list := empty()
		into, ok := any(list).(runtime.Object)
		if !ok {
			return fmt.Errorf("list %s: %T is no object: %w", r.name, list, errdefs.ErrInternal)
		}
		err := ask(ctx, func(ctx context.Context) error {
			return r.request(r.client.Get()).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(into)
		})
		if errdefs.IsOutOfRange(err) { // only a watch knows that class
			err = fmt.Errorf("the API server has forgotten the version that the list is of: %w: %v", errdefs.ErrUnavailable, err)
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", r.name, err)
		}
		if err := take(list); err != nil {
			return err
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// ask asks until there is a clear answer, for as long as a call may take.
func ask(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	for tries := 1; ; tries++ {
		try, done := context.WithTimeout(ctx, tryBound)
		err := do(try)
		done()
		if err == nil || refused(err) || !sleep(ctx, err, tries) {
			return failed(err)
		}
	}
}

// sleep waits before another try, as long as the API server wants, or ever longer; false: the time is over. A VM may
// stand still while its record is written, so that the first tries come soon.
func sleep(ctx context.Context, err error, tries int) bool {
	wait := min(mostPause, pause<<min(tries-1, mostDoubled))
	if said, ok := retryAfter(err); ok {
		wait = said
	}
	retry.Sleep(ctx, wait)
	return ctx.Err() == nil
}

// version answers an object's, which is a number that grows with each change of anything in the API server.
func version(o metav1.Object) (uint64, error) { return number(o.GetResourceVersion()) }

func number(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("the API server says resourceVersion %.40q, which is no number above 0: %w", text,
			errdefs.ErrNotImplemented)
	}
	return v, nil
}
