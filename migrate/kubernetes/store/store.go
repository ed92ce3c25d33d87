// Package store keeps the records in the API server of Kubernetes: one VMRecord for each VM, changed by
// compare-and-swap on its resourceVersion.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/store"
)

// Store is the store of the operator. A record and what belongs to it (closed operations, deletions that are owed) are
// one object, so that a change is one write. The version of a record is the resourceVersion that its last change was
// made from: it stays when the object is touched (SetState). The store's own state and the notes are ConfigMaps of one
// namespace.
//
// A VM whose record was removed leaves an object without a record while deletions are owed.
type Store struct {
	records resource[*v1alpha1.VMRecord]
	maps    resource[*corev1.ConfigMap]
	recent  *recent
	mirrors mirrors
}

var (
	_ store.Store = (*Store)(nil)
	_ store.Notes = (*Store)(nil)
)

const (
	// tryBound of one request. The API server itself needs a quorum of etcd.
	tryBound = 5 * time.Second
	// callBound of a call with its further tries.
	callBound = 15 * time.Second
	// pause before the second try, where the API server does not say for how long it is busy.
	pause = 50 * time.Millisecond
	// mostPause is what it is doubled to: an API server that is away for long is not asked ten times a second.
	mostPause = 2 * time.Second
	// mostDoubled is how often it is doubled.
	mostDoubled = 6
	// page is how many objects one request lists.
	page = 500
)

// Open answers the store in an API server. Nothing is asked yet.
func Open(config *rest.Config, namespace string) (*Store, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	client := func(gv schema.GroupVersion, path string) (rest.Interface, error) {
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &gv, path
		c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		return rest.RESTClientFor(c)
	}
	records, err := client(v1alpha1.GroupVersion, "/apis")
	if err != nil {
		return nil, fmt.Errorf("open store in %s: %w: %w", config.Host, errdefs.ErrInvalidArgument, err)
	}
	maps, err := client(corev1.SchemeGroupVersion, "/api")
	if err != nil {
		return nil, fmt.Errorf("open store in %s: %w: %w", config.Host, errdefs.ErrInvalidArgument, err)
	}
	st := &Store{recent: &recent{},
		records: resource[*v1alpha1.VMRecord]{client: records, name: "vmrecords", empty: newRecord},
		maps: resource[*corev1.ConfigMap]{client: maps, name: "configmaps", namespace: namespace,
			empty: func() *corev1.ConfigMap { return &corev1.ConfigMap{} }},
	}
	st.mirrors = st.newMirrors()
	return st, nil
}

func newRecord() *v1alpha1.VMRecord { return &v1alpha1.VMRecord{} }

// each lists the records that a selector chooses, page by page, as they are at one version.
func (s *Store) each(ctx context.Context, selector string, take func(*v1alpha1.VMRecord) error) error {
	list := func() *v1alpha1.VMRecordList { return &v1alpha1.VMRecordList{} }
	return pages(ctx, s.records, selector, list, func(l *v1alpha1.VMRecordList) error {
		for i := range l.Items {
			if err := take(&l.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
}
