package store_test

import (
	"testing"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, func() store.Store) {
		m := storetest.NewMemory()
		return m, func() store.Store { return m }
	})
}
