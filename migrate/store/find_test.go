package store_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A list of ten times as many VMs by their uids costs about ten times as much, not a hundred times:
// one node that asks for all keeps no other one waiting.
func TestFindOfManyUIDs(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const few, many = 20, 200
	for i := range many {
		vm := &nodev1.VM{Namespace: "ns", Id: fmt.Sprint("v", i)}
		if _, err := st.Apply(t.Context(), vm, 0,
			transition.Change{Record: &nodev1.Record{Vm: vm, Uid: fmt.Sprint("u", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	cost := func(n int) float64 {
		which := store.Which{}
		for i := range n {
			which.UIDs = append(which.UIDs, fmt.Sprint("u", i))
		}
		return testing.AllocsPerRun(3, func() {
			if all, err := st.Find(t.Context(), which); err != nil || len(all.Records) != n {
				t.Fatalf("found %d of %d: %v", len(all.Records), n, err)
			}
		})
	}
	if a, b := cost(few), cost(many); b > 2*many/few*a {
		t.Errorf("%v allocations for %d, %v for %d", a, few, b, many)
	}
}
