package incarnation

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A controller whose records.db was put back from a copy notices that as it starts, before it
// serves a client. A controller that was only started again does not, nor does one that keeps
// its records elsewhere from now on. What it remembers and cannot read is never taken for
// nothing.
func TestStartOnAnOldCopy(t *testing.T) {
	dir := t.TempDir()
	cfg, path := &config.Config{StateDir: dir}, filepath.Join(dir, "records.db")
	start := func(behind bool, claim string) {
		t.Helper()
		st, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		}()
		m, err := OpenWatermark(t.Context(), cfg.StateDir, StoreOf(cfg), controller.NewIncarnations(st, st, "a",
			func() []string {
				return nil
			}, nil))
		if err != nil {
			t.Fatal(err)
		}
		state, err := st.State(t.Context())
		if err != nil || (state.GetBehind() != nil) != behind {
			t.Fatalf("behind: %v, want %v: %v", state.GetBehind(), behind, err)
		}
		if claim != "" {
			if _, err := controller.New(st).Ensure(t.Context(),
				&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "ns", Id: claim}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	start(false, "one")
	copied, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	start(false, "two")
	start(false, "")
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	start(true, "")
	if err := os.Remove(path); err != nil { // a store that is empty is no newer
		t.Fatal(err)
	}
	start(true, "")
	cfg.Controller.Etcd = config.Etcd{Endpoints: []string{"https://192.0.2.1:2379"}, Prefix: "/godwit/"}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	start(false, "")
	if err := os.WriteFile(filepath.Join(dir, "store-seen.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWatermark(context.Background(), cfg.StateDir, StoreOf(cfg), nil); err == nil {
		t.Error("what was seen cannot be read, and any store is new enough")
	}
}
