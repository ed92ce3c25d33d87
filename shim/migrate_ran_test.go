package shim

import (
	"testing"
	"time"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// A VM that came here says when it ran first, which is where its downtime ends.
func TestArrivalTellsWhenItRan(t *testing.T) {
	w := coming(t)
	w.must("create", w.receive())
	w.connect()
	if !w.arrived() {
		t.Fatalf("phase %s", w.phase())
	}
	ran := func() int64 {
		q, err := w.machineService().Query(t.Context(), &machinev1.QueryRequest{})
		w.must("query", err)
		return q.GetResumedUnixNano()
	}
	q, err := w.machineService().Query(t.Context(), &machinev1.QueryRequest{})
	if err != nil || q.GetWritableBytes() != 4 { // of fakeDisks
		t.Errorf("its disk has %d bytes, %v", q.GetWritableBytes(), err)
	}
	if at := ran(); at != 0 {
		t.Errorf("it ran at %d, before its start", at)
	}
	w.commit()
	begun := time.Now().UnixNano()
	w.must("start", w.start())
	if at := ran(); at < begun || at > time.Now().UnixNano() {
		t.Errorf("it ran at %d, its start was at %d", at, begun)
	}
	w.agent.exit("") <- 0
	w.wait("")
	w.must("delete", w.delete())
}
