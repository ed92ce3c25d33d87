package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/engine"
)

func web() *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: "web"} }

// read answers what is after an event, as "ID EVENT PHASE", once n events are there.
func read(t *testing.T, h *History, req *nodev1.HistoryRequest, n int) (all []string) {
	t.Helper()
	for len(all) < n {
		resp := h.Read(t.Context(), &nodev1.HistoryRequest{After: req.GetAfter() + uint64(len(all)), WaitMs: 8000,
			SinceUnixNano: req.GetSinceUnixNano()})
		if len(resp.GetEvents()) == 0 {
			t.Fatalf("only %v", all)
		}
		for _, ev := range resp.GetEvents() {
			all = append(all, strings.TrimSpace(fmt.Sprint(ev.GetId(), " ", ev.GetEvent(), " ", ev.GetPhase())))
		}
	}
	return all
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// A history goes on with the next number after godwitd was started again, also where the last line is torn. A reader
// who comes back gets each event once.
func TestHistoryGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	h := Open(path, "a")
	h.Named(web(), "shop")
	for _, word := range []string{Create, Start, Exit} {
		h.Add(&nodev1.NodeEvent{Type: TypeVM, Event: word, Vm: web()})
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || strings.Count(string(data), `"shop"`) != 3 {
		t.Fatalf("%v: %s", err, data)
	}
	if err := os.WriteFile(path, append(data, `{"id":"5","ev`...), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time the file is whole again
		h = Open(path, "a")
		h.Add(&nodev1.NodeEvent{Type: TypeVM, Event: Start, Vm: web()})
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	h = Open(path, "a")
	defer h.Close()
	all := read(t, h, &nodev1.HistoryRequest{}, 8)
	want(t, all, "1 create", "2 start", "3 exit", "4 daemon-stop", "5 start", "6 daemon-stop", "7 start",
		"8 daemon-stop")
	h.Add(&nodev1.NodeEvent{Type: TypeVM, Event: Delete, Vm: web()})
	want(t, read(t, h, &nodev1.HistoryRequest{After: 7}, 2), "8 daemon-stop", "9 delete")
	if last := h.Last(func(ev *nodev1.NodeEvent) bool { return ev.GetEvent() == Delete }); last.GetName() != "shop" {
		t.Errorf("deleted %q", last.GetName())
	}
}

// godwitd has lost an event, and gives its number to another one. Its reader is told so, and gets what came after the
// time of it.
func TestLostEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	h := Open(path, "a")
	h.Add(&nodev1.NodeEvent{Event: Create, Vm: web()})
	resp := h.Read(t.Context(), &nodev1.HistoryRequest{WaitMs: 8000})
	last := resp.GetLast()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil { // as a power cut does
		t.Fatal(err)
	}
	h = Open(path, "a")
	defer h.Close()
	ask := &nodev1.HistoryRequest{After: last.GetId(), AfterUnixNano: last.GetHeardUnixNano(), WaitMs: 8000}
	if resp := h.Read(t.Context(), ask); !resp.GetLost() || len(resp.GetEvents()) != 0 {
		t.Errorf("nothing is left: %v", resp)
	}
	h.Add(&nodev1.NodeEvent{Event: Exit, Vm: web()})
	read(t, h, &nodev1.HistoryRequest{}, 1)
	if resp := h.Read(t.Context(), ask); !resp.GetLost() || len(resp.GetEvents()) != 1 {
		t.Errorf("of the same number: %v", resp)
	}
	ask.AfterUnixNano = h.Last(func(*nodev1.NodeEvent) bool { return true }).GetHeardUnixNano()
	ask.WaitMs = 0
	if resp := h.Read(t.Context(), ask); resp.GetLost() || len(resp.GetEvents()) != 0 {
		t.Errorf("known: %v", resp)
	}
}

// The history is bounded in memory and in its file; a reader who was away for longer sees it by the numbers.
func TestHistoryIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	h := Open(path, "a")
	for i := range 2*Kept + 10 {
		h.Add(&nodev1.NodeEvent{Event: Start, Vm: web(), Reason: strings.Repeat("x", 2000)})
		for i%100 == 0 && h.Last(func(ev *nodev1.NodeEvent) bool { return ev.GetId() > uint64(i) }) == nil {
			time.Sleep(time.Millisecond)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h = Open(path, "a")
	defer h.Close()
	resp := h.Read(t.Context(), &nodev1.HistoryRequest{After: 3})
	first := resp.GetEvents()[0]
	if len(h.all) != Kept || first.GetId() != resp.GetOldest().GetId() || first.GetId() < Kept || resp.GetLost() ||
		len(first.GetReason()) > maxReason+3 {
		t.Errorf("%d events, from %d on, reason of %d bytes, lost %v", len(h.all), first.GetId(), len(first.GetReason()),
			resp.GetLost())
	}
	if data, err := os.ReadFile(path); err != nil || strings.Count(string(data), "\n") > 2*Kept {
		t.Errorf("%d lines, %v", strings.Count(string(data), "\n"), err)
	}
}

// More events than can be written down are counted, and that is an event of its own.
func TestTooManyEvents(t *testing.T) {
	h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
	h.mu.Lock() // nothing is written meanwhile
	for range maxQueue {
		h.queue <- &nodev1.NodeEvent{Event: Start}
	}
	h.mu.Unlock()
	for range 2 * maxQueue {
		h.Add(&nodev1.NodeEvent{Event: Start})
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	kept, said := 0, 0
	for _, ev := range h.all {
		if ev.GetEvent() == Start {
			kept++
		}
		if n := 0; ev.GetEvent() == Gap {
			if _, err := fmt.Sscanf(ev.GetReason(), "%d events were dropped", &n); err != nil {
				t.Error(err)
			}
			said += n
		}
	}
	if kept+said < 3*maxQueue || kept+said > 3*maxQueue+1 { // the last one is that of the end
		t.Errorf("%d kept, %d said to be dropped, of %d", kept, said, 3*maxQueue)
	}
}

// A disk that takes nothing for a while costs no event: what is kept is written with the next one that it takes.
func TestDiskComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "away")
	path := filepath.Join(dir, "events.jsonl")
	h := Open(path, "a")
	h.Add(&nodev1.NodeEvent{Event: Create, Vm: web()})
	h.Add(&nodev1.NodeEvent{Event: Start, Vm: web()})
	read(t, h, &nodev1.HistoryRequest{}, 2)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.Add(&nodev1.NodeEvent{Event: Exit, Vm: web()})
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h = Open(path, "a")
	defer h.Close()
	want(t, read(t, h, &nodev1.HistoryRequest{}, 4), "1 create", "2 start", "3 exit", "4 daemon-stop")
}

// An operation begins once and ends once, and a retry with the same reason says nothing new. Moves and what the
// engine has no verb for are left out.
func TestOperations(t *testing.T) {
	h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
	defer h.Close()
	op := &nodev1.Operation{Id: "o", Attempt: 1, Source: "a"}
	tell := func(kind engine.Type, of nodev1.Kind, err error) {
		h.Event(t.Context(), engine.Event{Type: kind, VM: web(), Operation: "o", Kind: of, Op: op, Err: err})
	}
	const hibernate = nodev1.Kind_KIND_HIBERNATE
	tell(engine.Opened, hibernate, nil)
	tell(engine.Opened, nodev1.Kind_KIND_MIGRATE, nil)
	tell(engine.Retrying, hibernate, errors.New("store is away"))
	tell(engine.Retrying, hibernate, errors.New("store is away"))
	tell(engine.CleanupPending, hibernate, nil)
	op.Digest = "sha256:1"
	tell(engine.Committed, hibernate, nil)
	tell(engine.Succeeded, hibernate, nil)
	tell(engine.Succeeded, hibernate, nil)
	tell(engine.Failed, hibernate, nil)
	tell(engine.Superseded, 0, nil)
	want(t, read(t, h, &nodev1.HistoryRequest{}, 5), "1 hibernate begun", "2 hibernate retrying",
		"3 hibernate committed", "4 hibernate done", "5 superseded")
}

// settled answers an operation, and fails at first.
type settled struct {
	op    *nodev1.Operation
	calls int
}

func (s *settled) Operation(context.Context, *nodev1.OperationRequest) (*nodev1.OperationResponse, error) {
	if s.calls++; s.calls == 1 {
		return nil, errdefs.ErrUnavailable
	}
	if s.op == nil {
		return nil, errdefs.ErrNotFound
	}
	return &nodev1.OperationResponse{Operation: s.op}, nil
}

// The end of an operation that godwitd could not tell is told later, with its time, and once. Records that do not
// answer say nothing.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "events.jsonl")
		h := Open(path, "a")
		h.Event(t.Context(), engine.Event{Type: engine.Opened, VM: web(), Operation: "o", Kind: nodev1.Kind_KIND_WAKE,
			Op: &nodev1.Operation{Id: "o"}})
		closedAt := time.Now().UnixNano()
		s := &settled{op: &nodev1.Operation{Id: "o", Phase: nodev1.Phase_PHASE_SUCCEEDED, ClosedUnixNano: closedAt}}
		read(t, h, &nodev1.HistoryRequest{}, 1)
		if err := h.Settle(t.Context(), s); !errdefs.IsUnavailable(err) {
			t.Errorf("records are away: %v", err)
		}
		for range 3 {
			if err := h.Settle(t.Context(), s); err != nil {
				t.Error(err)
			}
			time.Sleep(settleAfter)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(h.all); n != 3 || h.all[1].GetPhase() != Done || h.all[1].GetUnixNano() != closedAt {
			t.Errorf("%v", h.all)
		}
	})
}

// An end that was found out later and is heard of too is told once, whichever comes first. The VMs that are there are
// known by their last start or end.
func TestSeenAndLate(t *testing.T) {
	h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
	defer h.Close()
	gone := &nodev1.VM{Namespace: "default", Id: "gone"}
	for _, ev := range []*nodev1.NodeEvent{
		{Event: Create, Vm: web()}, {Event: Start, Vm: web()}, {Event: Exit, Vm: web(), Reason: Late},
		{Event: Exit, Vm: web()}, {Event: Start, Vm: web()}, {Event: Exit, Vm: web()},
		{Event: Exit, Vm: web(), Reason: Late}, {Event: Start, Vm: gone}, {Event: Delete, Vm: gone},
		{Event: Start, Vm: web()}, {Event: Start, Vm: web()},
	} {
		ev.Type = TypeVM
		h.Add(ev)
	}
	want(t, read(t, h, &nodev1.HistoryRequest{}, 9), "1 create", "2 start", "3 exit", "4 start", "5 exit", "6 start",
		"7 delete", "8 start", "9 start")
	if seen := h.Seen(); len(seen) != 1 || seen[0].GetId() != 9 {
		t.Errorf("seen %v", seen)
	}
}

// A VM that ends since it sleeps or has moved says so; one that ends by itself after it has come back does not.
func TestExitOfAVMThatLeft(t *testing.T) {
	h := Open(filepath.Join(t.TempDir(), "events.jsonl"), "a")
	defer h.Close()
	op := func(event, id, to string) *nodev1.NodeEvent {
		return &nodev1.NodeEvent{Type: TypeOperation, Event: event, Phase: Committed, Vm: web(), Operation: id, Source: "a",
			Destination: to}
	}
	vm := func(event string) *nodev1.NodeEvent { return &nodev1.NodeEvent{Type: TypeVM, Event: event, Vm: web()} }
	for _, ev := range []*nodev1.NodeEvent{
		vm(Start), op("checkpoint", "c", ""), vm(Exit), vm(Start), op("hibernate", "h", ""), vm(Exit), vm(Start),
		op(Move, "m", "b"), vm(Exit), vm(Start), vm(Exit),
	} {
		h.Add(ev)
	}
	read(t, h, &nodev1.HistoryRequest{}, 11)
	var got []string
	for _, ev := range h.Read(t.Context(), &nodev1.HistoryRequest{}).GetEvents() {
		if ev.GetEvent() == Exit {
			got = append(got, ev.GetReason())
		}
	}
	want(t, got, "", "it sleeps", "it goes on at node b", "")
}
