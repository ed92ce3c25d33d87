//go:build integration

package store_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/store"

	rootstore "godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
)

var namespaces atomic.Int64

// currentNamespace is that of the last store that was opened.
func currentNamespace() string { return fmt.Sprintf("store-%d", namespaces.Load()) }

// open answers a store that is alone in the server: in a namespace of its own, and without records.
func open(t testing.TB, wrap func(http.RoundTripper) http.RoundTripper) (*store.Store, func() *store.Store) {
	t.Helper()
	namespaces.Add(1)
	namespace := currentNamespace()
	server.Clean(t)
	if _, err := server.Kubectl(t.Context(), "", "create", "namespace", namespace); err != nil {
		t.Fatal(err)
	}
	again := func() *store.Store {
		config := server.REST()
		if wrap != nil {
			config.Wrap(wrap)
		}
		st, err := store.Open(config, namespace)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	return again(), again
}

// The suite of all stores, each in an API server without records.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (rootstore.Store, func() rootstore.Store) {
		st, again := open(t, nil)
		return st, func() rootstore.Store { return again() }
	})
}
