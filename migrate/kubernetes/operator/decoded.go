package operator

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// decoded has the record that was decoded last. A change of a record has each snapshot of its VM looked at, and a
// record lists all of them.
type decoded struct {
	mu      sync.Mutex
	uid     types.UID
	version string
	record  *nodev1.Record // never changed, as owed is not
	owed    []*nodev1.Owed
}

// of decodes the record of an object, and the deletions that are pending in it.
func (d *decoded) of(o *v1alpha1.VMRecord) (*nodev1.Record, []*nodev1.Owed, error) {
	d.mu.Lock()
	known, pending := d.record, d.owed
	same := o.UID != "" && d.uid == o.UID && d.version == o.ResourceVersion
	d.mu.Unlock()
	if same {
		return known, pending, nil
	}
	rec, owed, err := store.RecordAndOwed(o)
	if err == nil {
		d.mu.Lock()
		d.uid, d.version, d.record, d.owed = o.UID, o.ResourceVersion, rec, owed
		d.mu.Unlock()
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
	if v.decoded == nil {
		return store.RecordAndOwed(o)
	}
	return v.decoded.of(o)
}
