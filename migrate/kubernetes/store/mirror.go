package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// mirrorAge is how long a watch may tell nothing and is believed. The API server tells each minute that nothing has
// changed.
const mirrorAge = 2 * time.Minute

var _ store.Mirror = (*Store)(nil)

// mirror has what a watch tells of some objects: what each of them holds, by its name.
type mirror[T object, V any] struct {
	of     resource[T]
	fields string // selects the objects; empty: all
	list   func() runtime.Object
	decode func(T) (V, error)

	mu    sync.Mutex
	all   map[string]V // nil: they were not read
	heard time.Time    // the last word of the watch; zero: none yet, or it has ended
}

// follow keeps the mirror until ctx ends.
func (m *mirror[T, V]) follow(ctx context.Context) {
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = m.fields
			list := m.list()
			return list, m.of.request(m.of.client.Get()).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.Watch = m.fields, true
			w, err := m.of.request(m.of.client.Get()).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
			if err != nil {
				return nil, err
			}
			m.begin(o)
			return stops{watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
				m.hear(e.Type != watch.Error)
				return e, true
			}), func() { m.hear(false) }}, nil
		},
	}, m.of.client)
	cache.NewReflectorWithOptions(lw, m.of.empty(), m, cache.ReflectorOptions{Name: "godwit/" + m.of.name}).
		RunWithContext(ctx)
}

// stops tells when a watch is not read any more: it may have ended without a word.
type stops struct {
	watch.Interface
	told func()
}

// Stop implements watch.Interface.
func (s stops) Stop() {
	s.Interface.Stop()
	s.told()
}

// begin is of a watch that has told nothing yet. One that tells first what there is makes what was read before old.
func (m *mirror[T, V]) begin(o metav1.ListOptions) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.heard = (time.Time{}); o.SendInitialEvents != nil && *o.SendInitialEvents {
		m.all = nil
	}
}

// hear notes a word of the watch; not open: it has ended.
func (m *mirror[T, V]) hear(open bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.heard = (time.Time{}); open {
		m.heard = time.Now()
	}
}

// fresh has take look at what each object holds, under the lock; false: what is known is too old.
func (m *mirror[T, V]) fresh(take func(V)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil || time.Since(m.heard) > mirrorAge {
		return false
	}
	for _, v := range m.all {
		take(v)
	}
	return true
}

// Add implements cache.ReflectorStore.
func (m *mirror[T, V]) Add(obj any) error {
	o, v, err := m.read(obj)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil: // it is not known what this object holds
		m.all = nil
	case m.all != nil:
		m.all[o.GetName()] = v
	}
	return err
}

// Update implements cache.ReflectorStore.
func (m *mirror[T, V]) Update(obj any) error { return m.Add(obj) }

// Delete implements cache.ReflectorStore.
func (m *mirror[T, V]) Delete(obj any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, err := m.object(obj)
	if err != nil {
		m.all = nil
		return err
	}
	delete(m.all, o.GetName())
	return nil
}

// Replace implements cache.ReflectorStore.
func (m *mirror[T, V]) Replace(list []any, _ string) error {
	all, err := m.readAll(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = all
	return err
}

func (m *mirror[T, V]) readAll(list []any) (map[string]V, error) {
	all := make(map[string]V, len(list))
	for _, obj := range list {
		o, v, err := m.read(obj)
		if err != nil {
			return nil, err
		}
		all[o.GetName()] = v
	}
	return all, nil
}

// Resync implements cache.ReflectorStore.
func (*mirror[T, V]) Resync() error { return nil }

func (m *mirror[T, V]) read(obj any) (o T, v V, err error) {
	if o, err = m.object(obj); err == nil {
		v, err = m.decode(o)
	}
	return o, v, err
}

func (m *mirror[T, V]) object(obj any) (T, error) {
	o, ok := obj.(T)
	if !ok {
		return o, fmt.Errorf("a watch of %s tells of a %T", m.of.name, obj)
	}
	return o, nil
}

// heard is what a watch has told of an object: what it holds, or that it cannot be read.
type heard struct {
	content
	unread *store.Unread
}

func hear(o *v1alpha1.VMRecord) (heard, error) {
	c, err := decode(o)
	if err != nil {
		u := unreadable(o, err)
		return heard{unread: &u}, nil
	}
	return heard{content: c}, nil
}

// mirrors are those that FindCached answers from.
type mirrors struct {
	records *mirror[*v1alpha1.VMRecord, heard]
	state   *mirror[*corev1.ConfigMap, *nodev1.StoreState]
}

func (s *Store) newMirrors() mirrors {
	return mirrors{
		records: &mirror[*v1alpha1.VMRecord, heard]{of: s.records, decode: hear,
			list: func() runtime.Object { return &v1alpha1.VMRecordList{} }},
		state: &mirror[*corev1.ConfigMap, *nodev1.StoreState]{of: s.maps, fields: "metadata.name=" + stateName,
			list: func() runtime.Object { return &corev1.ConfigMapList{} }, decode: decodeState},
	}
}

// Follow has FindCached answer, until ctx ends.
func (s *Store) Follow(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { s.mirrors.state.follow(ctx) })
	both.Go(func() { s.mirrors.records.follow(ctx) })
	both.Wait()
}

// StateCached implements store.Mirror.
func (s *Store) StateCached() (*nodev1.StoreState, bool) {
	now := &nodev1.StoreState{}
	ok := s.mirrors.state.fresh(func(state *nodev1.StoreState) { now = proto.CloneOf(state) })
	return now, ok
}

// EachCached has take look at each record that the mirror has, and change none of them; false: what it has is too old,
// or one of them cannot be read.
func (s *Store) EachCached(take func(*nodev1.Record)) bool {
	whole := true
	fresh := s.mirrors.records.fresh(func(c heard) {
		if whole = whole && c.unread == nil; c.record != nil {
			take(c.record)
		}
	})
	return fresh && whole
}

// FindCached implements store.Mirror.
func (s *Store) FindCached(which store.Which) (found store.Found, ok bool) {
	if found.State, ok = s.StateCached(); !ok {
		return store.Found{}, false
	}
	deletes, pending := false, store.WhichDeletions{Deleter: which.Deleter}
	ok = s.mirrors.records.fresh(func(c heard) {
		if c.unread != nil {
			found.Unread = append(found.Unread, *c.unread)
			return
		}
		if c.record != nil && which.Has(c.record) {
			found.Records = append(found.Records, proto.CloneOf(c.record))
		}
		deletes = deletes || which.Deleter != "" && slices.ContainsFunc(c.owed, pending.Has)
	})
	if !ok {
		return store.Found{}, false
	}
	if which.Deleter != "" {
		found.HasDeletions = has(deletes, found.Unread)
	}
	slices.SortFunc(found.Records, byKey)
	return found, true
}
