package history

import (
	"path/filepath"
	"strings"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store/storetest"
)

// A wake that a shim orders by itself is told as one that the engine drives. What the records refuse is not, and what
// they are asked by others neither.
func TestWakesOfShims(t *testing.T) {
	h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
	defer h.Close()
	records := controller.New(storetest.NewMemory())
	s := &Shims{RecordsService: records, History: h}
	digest := "sha256:" + strings.Repeat("a", 64)
	must := func(_ *nodev1.Record, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Ensure(t.Context(), &nodev1.EnsureRequest{Vm: web()}))
	must(s.Own(t.Context(), &nodev1.OwnRequest{Vm: web(), Node: "a"}))
	must(s.Open(t.Context(), &nodev1.OpenRequest{Vm: web(), Operation: &nodev1.Operation{Id: "h", Attempt: 1,
		Generation: 1, Kind: nodev1.Kind_KIND_HIBERNATE, Source: "a", Repository: "r", Tag: "t"}}))
	must(s.Advance(t.Context(), &nodev1.AdvanceRequest{Vm: web(), Operation: "h", Attempt: 1, Generation: 1,
		Phase: nodev1.Phase_PHASE_SWITCHING, Digest: digest}))
	must(s.Commit(t.Context(), &nodev1.CommitRequest{Vm: web(), Operation: "h", Attempt: 1, Generation: 1,
		Owner:   &nodev1.Owner{Digest: digest},
		Receipt: record.Receipt{Operation: "h", Attempt: 1, Generation: 1, Digest: digest, Stopped: true}.String()}))
	must(s.Advance(t.Context(), &nodev1.AdvanceRequest{Vm: web(), Operation: "h", Attempt: 1, Generation: 1,
		Phase: nodev1.Phase_PHASE_CLEANING}))
	must(s.Finish(t.Context(), &nodev1.FinishRequest{Vm: web(), Operation: "h", Attempt: 1, Generation: 1,
		Phase: nodev1.Phase_PHASE_SUCCEEDED}))
	wake := &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "a", Digest: digest,
		Generation: 1}
	_, err := s.Open(t.Context(), &nodev1.OpenRequest{Vm: web(), Operation: wake})
	if wake.Generation = 2; err == nil {
		t.Fatal("a wake of a generation that has passed was opened")
	}
	for range 2 { // a call that broke is made again
		must(s.Open(t.Context(), &nodev1.OpenRequest{Vm: web(), Operation: wake}))
	}
	must(s.Advance(t.Context(), &nodev1.AdvanceRequest{Vm: web(), Operation: "w", Attempt: 1, Generation: 2,
		Phase: nodev1.Phase_PHASE_SWITCHING}))
	must(s.Commit(t.Context(), &nodev1.CommitRequest{Vm: web(), Operation: "w", Attempt: 1, Generation: 2,
		Owner: &nodev1.Owner{Node: "a"}}))
	must(s.Finish(t.Context(), &nodev1.FinishRequest{Vm: web(), Operation: "w", Attempt: 1, Generation: 2,
		Phase: nodev1.Phase_PHASE_SUCCEEDED}))
	want(t, read(t, h, &nodev1.HistoryRequest{}, 3), "1 wake begun", "2 wake committed", "3 wake done")
	h.mu.Lock()
	defer h.mu.Unlock()
	if ev := h.all[2]; ev.GetDestination() != "a" || ev.GetDigest() != digest || len(s.open) > 0 {
		t.Errorf("told %v, open %v", ev, s.open)
	}
}
