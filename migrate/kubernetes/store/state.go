package store

import (
	"context"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	stateName = "godwit-store-state"
	stateKey  = "state"
	// touched is the annotation of the state that names its version once each record was touched under it.
	touched = "godwit.dev/touched"
)

// State implements store.Incarnations. It ends what a SetState that did not end has begun.
func (s *Store) State(ctx context.Context) (*nodev1.StoreState, error) {
	o, state, err := s.state(ctx)
	if err == nil && o != nil && o.Annotations[touched] != touchedBy(state) {
		err = s.touch(ctx, o, state)
	}
	if err != nil {
		return nil, fmt.Errorf("load state of the store: %w", err)
	}
	return state, nil
}

// state answers the state, and the object that it is in, nil where there is none yet.
func (s *Store) state(ctx context.Context) (*corev1.ConfigMap, *nodev1.StoreState, error) {
	o, there, err := s.maps.get(ctx, stateName)
	if err != nil || !there {
		return nil, &nodev1.StoreState{}, err
	}
	state, err := decodeState(o)
	if err != nil {
		return nil, nil, err
	}
	return o, state, nil
}

func decodeState(o *corev1.ConfigMap) (*nodev1.StoreState, error) {
	state := &nodev1.StoreState{}
	if err := proto.Unmarshal(o.BinaryData[stateKey], state); err != nil {
		return nil, fmt.Errorf("decode configmap %s: %w: %w", stateName, err, errdefs.ErrDataLoss)
	}
	return state, nil
}

func touchedBy(state *nodev1.StoreState) string { return strconv.FormatUint(state.GetVersion(), 10) }

// under refuses what was decided under another state of the store.
func (s *Store) under(ctx context.Context, version uint64) error {
	state, err := s.State(ctx)
	if err == nil && state.GetVersion() != version {
		err = fmt.Errorf("the store's own state is of version %d, not %d: %w", state.GetVersion(), version,
			errdefs.ErrConflict)
	}
	return err
}

// SetState implements store.Incarnations.
//
// State and records are objects of their own, and the API server changes one at a time. So the state is written, and
// then each record is touched, which changes its resourceVersion. A change of a record reads the record, then the
// state, then writes. If it saw the old state, it has read the record before the touch: its write is a conflict, or
// came before SetState answers. A record that is new is first made empty, so that it is touched too.
func (s *Store) SetState(ctx context.Context, expected uint64, state *nodev1.StoreState) (*nodev1.StoreState, error) {
	next, err := s.setState(ctx, expected, state)
	if err != nil {
		return nil, fmt.Errorf("store state of the store: %w", err)
	}
	return next, nil
}

func (s *Store) setState(ctx context.Context, expected uint64, state *nodev1.StoreState) (*nodev1.StoreState, error) {
	o, now, err := s.state(ctx)
	if err != nil {
		return nil, err
	}
	if v := now.GetVersion(); v != expected {
		return nil, fmt.Errorf("it is of version %d, not %d: %w", v, expected, errdefs.ErrConflict)
	}
	next := proto.CloneOf(state)
	next.Version = 1
	if o == nil {
		o = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: stateName, Namespace: s.maps.namespace}}
	} else if next.Version, err = version(o); err != nil { // grows, also beyond what a copy knows
		return nil, err
	}
	data, err := proto.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	o.BinaryData = map[string][]byte{stateKey: data}
	made, err := s.maps.put(ctx, o)
	if errdefs.IsAlreadyExists(err) {
		err = fmt.Errorf("another one was written: %w", errdefs.ErrConflict)
	}
	if err == nil {
		err = s.touch(ctx, made, next)
	}
	return next, err
}

// touch changes the resourceVersion of each record that was not written under the state.
func (s *Store) touch(ctx context.Context, o *corev1.ConfigMap, state *nodev1.StoreState) error {
	under := int64(state.GetVersion())
	err := s.each(ctx, "", func(rec *v1alpha1.VMRecord) error {
		for there := true; there && rec.Under != under; {
			if _, err := decode(rec); err != nil { // a write of it would make what it has lost lost for ever
				return err
			}
			rec.Under = under
			if _, err := s.records.put(ctx, rec); err == nil || !errdefs.IsConflict(err) {
				return notGone(err)
			}
			var err error
			if rec, there, err = s.records.get(ctx, rec.Name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("touch the records: %w", err)
	}
	o.Annotations[touched] = touchedBy(state)
	if _, err := s.maps.put(ctx, o); err != nil && !errdefs.IsConflict(err) { // a conflict: another one has done it
		return err
	}
	return nil
}

// notGone leaves away that an object was removed meanwhile.
func notGone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Revision implements store.Incarnations: it is that of the whole etcd.
func (s *Store) Revision(ctx context.Context) (state *nodev1.StoreState, revision uint64, err error) {
	if state, err = s.State(ctx); err != nil {
		return nil, 0, err
	}
	list := &v1alpha1.VMRecordList{}
	err = ask(ctx, func(ctx context.Context) error {
		return s.records.request(s.records.client.Get()).Param("limit", "1").Do(ctx).Into(list)
	})
	if err == nil {
		revision, err = number(list.ResourceVersion)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("load revision of the store: %w", err)
	}
	return state, revision, nil
}
