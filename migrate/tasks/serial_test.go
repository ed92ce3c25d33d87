package tasks

import (
	"context"
	"errors"
	"sync"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Calls about one VM come one after the other, those about others do not wait, and one
// whose caller has gone is not made.
func TestCallsAboutOneVM(t *testing.T) {
	var s serial
	web, db := &nodev1.VM{Namespace: "default", Id: "web"}, &nodev1.VM{Namespace: "default", Id: "db"}
	unlock, err := s.lock(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.lock(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	other()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.lock(gone, web); !errors.Is(err, context.Canceled) {
		t.Fatalf("locked twice: %v", err)
	}
	count, inside := 0, 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			unlock, err := s.lock(t.Context(), web)
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			if inside++; inside != 1 {
				t.Error("two are inside")
			}
			count++
			inside--
		})
	}
	unlock()
	all.Wait()
	if count != 20 || len(s.busy) != 0 {
		t.Errorf("%d calls were made, %d VMs are remembered", count, len(s.busy))
	}
}
