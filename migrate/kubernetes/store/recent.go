package store

import (
	"sync"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// recent are the objects of records with an open operation, as this process has written them last. A change of such a
// record is one write: that it was the last is proved by its resourceVersion.
type recent struct {
	mu  sync.Mutex
	all map[string]*v1alpha1.VMRecord // by name; as many as there are open operations
}

func (r *recent) keep(o *v1alpha1.VMRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]*v1alpha1.VMRecord{}
	}
	r.all[o.Name] = o
}

// take answers an object, and keeps it no more: a write that fails leaves nothing to begin from. nil: there is none.
func (r *recent) take(name string) *v1alpha1.VMRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.all[name]
	delete(r.all, name)
	return o
}
