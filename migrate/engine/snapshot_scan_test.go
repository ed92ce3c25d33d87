package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A store that does not answer ends a scan, and a prune that waits for the scan ends with its caller. Nothing was
// deleted meanwhile: what the store did not say is not absent.
func TestScanHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := asleep(t)
		e := w.engine("n1")
		defer e.Close()
		e.opts.Retention = Retention{Keep: 1, Grace: time.Hour, Scans: true}
		w.hangs("Leftovers", true)
		begun := time.Now()
		done := make(chan error, 1)
		go func() { done <- e.Scan(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := e.Prune(ctx, &nodev1.PruneRequest{Vm: vm}); err == nil || time.Since(begun) != time.Minute {
			t.Errorf("prune: %v after %v", err, time.Since(begun))
		}
		select {
		case err := <-done:
			if err == nil || time.Since(begun) != repositoryBound {
				t.Errorf("scan: %v after %v", err, time.Since(begun))
			}
		case <-time.After(2 * repositoryBound):
			t.Error("a scan has no end")
		}
		if len(w.dropped) != 0 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}
