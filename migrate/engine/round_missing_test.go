package engine

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// heldDisown keeps the n-th Disown on its way: its caller is answered Unavailable.
type heldDisown struct {
	nodev1.RecordsService
	n    int
	late func() (*nodev1.Record, error)
}

func (h *heldDisown) Disown(ctx context.Context, req *nodev1.DisownRequest) (*nodev1.Record, error) {
	if h.n--; h.n != 0 {
		return h.RecordsService.Disown(ctx, req)
	}
	h.late = func() (*nodev1.Record, error) { return h.RecordsService.Disown(context.Background(), req) }
	return nil, errdefs.ErrUnavailable
}

// A shim stands still between its claim and its first word, and its node gives the claim up. Whichever
// of the node's writes is held on its way, and lands once the shim has begun and Start has asked the
// record: a VM that Start lets run keeps its owner, and a claim that is given up starts nothing.
func TestLateDisown(t *testing.T) {
	for n := 1; n <= 2; n++ {
		w := newWorld(t)
		e := w.start("n1")
		now := time.Unix(1_000_000, 0)
		e.now = func() time.Time { return now }
		rec := w.record()
		w.set("n1", gone)
		h := &heldDisown{RecordsService: w.records, n: n}
		e.Records = h
		round := func() error {
			now = now.Add(time.Minute)
			return e.Reconcile(t.Context(), func() ([]*nodev1.VM, error) { return nil, nil })
		}
		for range 10 {
			if err := round(); err != nil && !errdefs.IsUnavailable(err) {
				t.Fatal(err)
			}
			if h.late != nil {
				break
			}
		}
		if h.late == nil {
			t.Fatalf("the node gives nothing up with write %d: %v", n, w.record())
		}
		w.set("n1", runs) // the shim goes on: journal, and Start
		proof := w.record()
		starts := proof.GetOwner().GetNode() == "n1" && proof.GetGeneration() == rec.GetGeneration() && !proof.GetMissing()
		_, err := h.late()
		after := w.record()
		if owns := after.GetOwner().GetNode() == "n1" && after.GetGeneration() == rec.GetGeneration(); starts && !owns {
			t.Errorf("write %d lands late (%v): the VM runs, and its record is %v", n, err, after)
		}
		if starts == (n == 2) {
			t.Errorf("write %d is held, Start runs the VM: %t", n, starts)
		}
	}
}
