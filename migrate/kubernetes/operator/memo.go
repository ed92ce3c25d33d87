package operator

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// memo has the record that was decoded last. A change of a record has each snapshot of its VM looked at, and a record
// lists all of them.
type memo struct {
	mu      sync.Mutex
	uid     types.UID
	version string
	record  *nodev1.Record // never changed, as owed is not
	owed    []*nodev1.Owed
}

// of decodes the record of an object, and the deletions that are pending in it.
func (m *memo) of(o *v1alpha1.VMRecord) (*nodev1.Record, []*nodev1.Owed, error) {
	m.mu.Lock()
	known, pending := m.record, m.owed
	same := o.UID != "" && m.uid == o.UID && m.version == o.ResourceVersion
	m.mu.Unlock()
	if same {
		return known, pending, nil
	}
	rec, owed, err := store.RecordAndOwed(o)
	if err == nil {
		m.mu.Lock()
		m.uid, m.version, m.record, m.owed = o.UID, o.ResourceVersion, rec, owed
		m.mu.Unlock()
	}
	return rec, owed, err
}

// listed reads the record that lists the snapshots of a VM, and the deletions that are pending in its object. Without
// an object there is neither. What it answers is not to be changed.
func (v View) listed(ctx context.Context, namespace, vm string) (*nodev1.Record, []*nodev1.Owed, error) {
	o := &v1alpha1.VMRecord{}
	there, err := v.Get(ctx, types.NamespacedName{Name: namespace + "." + vm}, o)
	if err != nil || !there {
		return nil, nil, err
	}
	if v.memo == nil {
		return store.RecordAndOwed(o)
	}
	return v.memo.of(o)
}
