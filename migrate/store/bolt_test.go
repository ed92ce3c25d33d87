package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
)

func TestBolt(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		path := filepath.Join(t.TempDir(), "state", "records.db")
		open := func() *store.Bolt {
			st, err := store.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		st := open()
		t.Cleanup(func() { _ = st.Close() })
		return st, func() store.Store {
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			st = open()
			return st
		}
	})
}

func TestBoltIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "records.db")
	st, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestBoltRefusesWhatIsNoStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	if err := os.WriteFile(path, []byte("not a store, and longer than nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if st, err := store.Open(path); err == nil {
		_ = st.Close()
		t.Fatal("opened it")
	}
}
