package engine

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// While a VM is sent, its status says how far that has come, in its source's words of this attempt. What another
// attempt says does not count. Before the first pass there is nothing to say.
func TestMoveTellsItsTransfer(t *testing.T) {
	w := liveWorld(t)
	e := w.start("c")
	w.hangs("Send", true)
	if err := w.moveLive(e, "m"); err != nil {
		t.Fatal(err)
	}
	w.called("Send", 1)
	said := &machinev1.Progress{
		Step: "send pages", Done: 10, Total: 20, Pass: 2, Left: 30, DirtyRate: 40, Moved: 50, ExpectedMs: 60,
	}
	want := &nodev1.Transfer{Pass: 2, LeftBytes: 30, DirtyRate: 40, SentBytes: 50, DowntimeMs: 60}
	greeting := proto.CloneOf(said)
	greeting.Pass = 0
	for name, tt := range map[string]struct {
		ref  *machinev1.Ref
		said *machinev1.Progress
		want *nodev1.Transfer
		done uint64
	}{
		"sends":            {&machinev1.Ref{Operation: "m", Attempt: 1}, said, want, 10},
		"has not begun":    {&machinev1.Ref{Operation: "m", Attempt: 1}, greeting, nil, 10},
		"another attempt":  {&machinev1.Ref{Operation: "m", Attempt: 2}, said, nil, 0},
		"another move":     {&machinev1.Ref{Operation: "o", Attempt: 1}, said, nil, 0},
		"not owned":        {nil, said, nil, 0},
		"nothing is known": {&machinev1.Ref{Operation: "m", Attempt: 1}, nil, nil, 0},
	} {
		w.says(&machinev1.QueryResponse{Ref: tt.ref, Progress: tt.said})
		status, err := e.Status(t.Context(), "m")
		if err != nil || !proto.Equal(status.GetTransfer(), tt.want) || status.GetDone() != tt.done {
			t.Errorf("%s: %v: %v", name, status, err)
		}
	}
	w.tellsCollector(e, said)
	w.says(nil)
	w.hangs("Send", false)
	if _, err := e.Cancel(t.Context(), "m", "enough"); err != nil {
		t.Fatal(err)
	}
	if op := w.settle("m"); op.Phase != nodev1.Phase_PHASE_ABORTED {
		t.Errorf("%v", op)
	}
	status, err := e.Status(t.Context(), "m")
	if err != nil || status.GetTransfer() != nil || !status.GetSettled() {
		t.Errorf("at its end: %v, %v", status, err)
	}
}

// tellsCollector wants the same of a scrape, in numbers.
func (w *world) tellsCollector(e *Engine, said *machinev1.Progress) {
	w.t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(NewTransferMetrics(e)); err != nil {
		w.t.Fatal(err)
	}
	w.says(&machinev1.QueryResponse{Ref: &machinev1.Ref{Operation: "m", Attempt: 1}, Progress: said})
	for name, want := range map[string]float64{"processed_bytes": 50, "remaining_bytes": 30} {
		if got := gathered(w.t, registry, "godwit_migration_data_"+name, vm.GetId(), vm.GetNamespace()); got != want {
			w.t.Errorf("%s %v, want %v", name, got, want)
		}
	}
	if got := gathered(w.t, registry, "godwit_migration_dirty_memory_rate_bytes", vm.GetId(),
		vm.GetNamespace()); got != 40 {
		w.t.Errorf("dirty rate %v", got)
	}
	for phase, want := range map[string]float64{"pending": 0, "scheduling": 0, "running": 1} {
		if got := gathered(w.t, registry, "godwit_migrations_in_"+phase+"_phase"); got != want {
			w.t.Errorf("%v moves are %s, want %v", got, phase, want)
		}
	}
}

// says makes the source answer that, or what it does by itself.
func (w *world) says(q *machinev1.QueryResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progress = q
}

// A move's figures end where the guest ran, not where its destination has looked at it; their
// parts are the whole.
func TestMoveFiguresEndWhereTheGuestRuns(t *testing.T) {
	w := liveWorld(t)
	e := w.start("c")
	begun := time.Unix(1000, 0)
	e.now = func() time.Time { return begun.Add(100 * time.Millisecond) }
	op := &nodev1.Operation{
		StartedUnixNano: begun.Add(-time.Second).UnixNano(),
		Receipt:         record.Receipt{CopyMS: 20, VoteMS: 3, StopAt: begun.Add(-30 * time.Millisecond).UnixNano()}.String(),
	}
	for since, want := range map[float64]record.Outcome{
		0:    {DowntimeMS: 130, CopyMS: 20, VoteMS: 3, CommitMS: 7, RunMS: 100, TotalMS: 1100},
		90:   {DowntimeMS: 40, CopyMS: 20, VoteMS: 3, CommitMS: 7, RunMS: 10, TotalMS: 1100},
		9999: {DowntimeMS: 23, CopyMS: 20, VoteMS: 3, TotalMS: 1100}, // a clock that was set
	} {
		if got := e.outcome(op, begun, &nodev1.PeerRunResponse{SinceMs: since}); got != want {
			t.Errorf("since %v: %+v, want %+v", since, got, want)
		}
	}
}
