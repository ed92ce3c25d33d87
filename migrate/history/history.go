// Package history keeps what has happened to the VMs of a node: a bounded list in a file, which goes on after godwitd
// was started again. What happens is told by containerd, by the node's engine, and by the controller's events of moves.
package history

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/visible"
)

const (
	// Kept is how many events there are at most.
	Kept = 4096

	maxQueue  = 1024    // events that are not written yet
	maxReason = 1024    // bytes
	partSize  = 1 << 20 // of one answer, in bytes
	maxWait   = 8 * time.Second
)

// History takes events from several sources, numbers them in the order in which it hears them, and writes them down.
// A reader sees an event once it is in the file.
type History struct {
	node  string
	queue chan *nodev1.NodeEvent
	done  chan struct{}
	file  *file // of the goroutine that writes

	mu      sync.Mutex
	all     []*nodev1.NodeEvent // oldest first
	last    uint64
	fresh   chan struct{}     // closed with the next event
	names   map[string]string // what VMs are called, by NAMESPACE/ID
	dropped int               // events that the queue had no room for
	closed  bool
}

// Open reads the history in a file, and goes on with it. A file that cannot be read is kept
// under another name, and an event says so.
func Open(path, node string) *History {
	h := &History{node: node, queue: make(chan *nodev1.NodeEvent, maxQueue), done: make(chan struct{}),
		file: &file{path: path}, fresh: make(chan struct{}), names: map[string]string{}}
	all, err := h.file.open()
	if err != nil {
		slog.Warn("read the history of events", "path", path, "error", err)
		h.Add(&nodev1.NodeEvent{Type: TypeNode, Event: Gap, Reason: "events of before cannot be read: " + err.Error()})
	}
	if h.all = all; len(all) > 0 {
		h.last = all[len(all)-1].GetId()
	}
	for _, ev := range all {
		h.names[key(ev.GetVm())] = ev.GetName()
	}
	go h.write()
	return h
}

// Close writes what is left.
func (h *History) Close() error {
	h.Add(&nodev1.NodeEvent{Type: TypeNode, Event: Stop, Reason: "godwitd stops"})
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.queue)
	}
	h.mu.Unlock()
	<-h.done
	return h.file.close()
}

// Add takes an event, and waits for nothing. Its time is now if it has none.
func (h *History) Add(ev *nodev1.NodeEvent) {
	if ev.GetUnixNano() == 0 {
		ev.UnixNano = time.Now().UnixNano()
	}
	ev.Node, ev.Reason = h.node, visible.Cut(ev.GetReason(), maxReason)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ev.GetName() == "" {
		ev.Name = h.names[key(ev.GetVm())]
	}
	if h.closed {
		return
	}
	select {
	case h.queue <- ev:
	default:
		h.dropped++
	}
}

// Named says what a VM is called. It reports what the VM was called before.
func (h *History) Named(vm *nodev1.VM, name string) (before string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known = h.names[key(vm)]
	h.names[key(vm)] = name
	return before, known
}

// Seen are the last starts and ends of the VMs that are there, one of each VM, as far as they are kept.
func (h *History) Seen() (all []*nodev1.NodeEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := map[string]bool{}
	for _, ev := range slices.Backward(h.all) {
		if vm := key(ev.GetVm()); !known[vm] && ev.GetType() == TypeVM &&
			slices.Contains([]string{Create, Start, Exit, Delete}, ev.GetEvent()) {
			if known[vm] = true; ev.GetEvent() != Delete {
				all = append(all, ev)
			}
		}
	}
	return all
}

// Last is the newest event that counts; nil: there is none.
func (h *History) Last(counts func(*nodev1.NodeEvent) bool) *nodev1.NodeEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ev := range slices.Backward(h.all) {
		if counts(ev) {
			return ev
		}
	}
	return nil
}

func (h *History) write() {
	defer close(h.done)
	for ev := range h.queue {
		h.append(ev)
		h.mu.Lock()
		n := h.dropped
		h.dropped = 0
		h.mu.Unlock()
		if n > 0 {
			h.append(&nodev1.NodeEvent{Type: TypeNode, Event: Gap, Node: h.node, UnixNano: time.Now().UnixNano(),
				Reason: fmt.Sprintf("%d events were dropped: more came than could be written down", n)})
		}
	}
}

// append numbers an event, and writes it down.
func (h *History) append(ev *nodev1.NodeEvent) {
	h.mu.Lock()
	again := h.told(ev)
	if ev.GetEvent() == Exit && ev.GetProcess() == "" && ev.GetReason() == "" {
		ev.Reason = h.left(ev.GetVm())
	}
	ev.Id, ev.HeardUnixNano = h.last+1, time.Now().UnixNano()
	if n := len(h.all); n > 0 { // a clock that was set back
		ev.HeardUnixNano = max(ev.GetHeardUnixNano(), h.all[n-1].GetHeardUnixNano()+1)
	}
	all := h.all
	h.mu.Unlock()
	if again {
		return
	}
	h.file.add(ev, all)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.all = ev.GetId(), append(h.all, ev)
	if n := len(h.all) - Kept; n > 0 {
		h.all = slices.Clone(h.all[n:])
	}
	if ev.GetEvent() == Delete {
		delete(h.names, key(ev.GetVm()))
	}
	close(h.fresh)
	h.fresh = make(chan struct{})
}

// told reports whether an event was told already. An operation begins once and ends once, and a retry with the reason
// of the one before says nothing new.
func (h *History) told(ev *nodev1.NodeEvent) bool {
	if ev.GetOperation() == "" {
		return h.late(ev)
	}
	for _, was := range slices.Backward(h.all) {
		if was.GetOperation() != ev.GetOperation() || was.GetEvent() != ev.GetEvent() {
			continue
		}
		switch {
		case ev.GetPhase() == Retrying:
			return was.GetPhase() == Retrying && was.GetReason() == ev.GetReason() && was.GetAttempt() == ev.GetAttempt()
		case was.GetPhase() == ev.GetPhase() && was.GetAttempt() == ev.GetAttempt(), ended(was.GetPhase()):
			return true
		}
	}
	return false
}

// late reports whether one of two events, which are told of the same start or end, was found out later.
func (h *History) late(ev *nodev1.NodeEvent) bool {
	if ev.GetType() != TypeVM || !slices.Contains([]string{Start, Exit, Delete}, ev.GetEvent()) {
		return false
	}
	for _, was := range slices.Backward(h.all) {
		if key(was.GetVm()) == key(ev.GetVm()) && was.GetType() == TypeVM &&
			slices.Contains([]string{Create, Start, Exit, Delete}, was.GetEvent()) {
			return was.GetEvent() == ev.GetEvent() && (was.GetReason() == Late || ev.GetReason() == Late)
		}
	}
	return false
}

// left is where a VM goes on that ends here; empty: nowhere, as far as it is known.
func (h *History) left(vm *nodev1.VM) string {
	for _, was := range slices.Backward(h.all) {
		switch {
		case key(was.GetVm()) != key(vm):
		case was.GetEvent() == Start:
			return ""
		case was.GetPhase() == Committed && was.GetEvent() == "hibernate":
			return "it sleeps"
		case was.GetPhase() == Committed && was.GetEvent() == Move && was.GetSource() == h.node:
			return "it goes on at node " + was.GetDestination()
		}
	}
	return ""
}

// Read answers events, or waits for one.
func (h *History) Read(ctx context.Context, req *nodev1.HistoryRequest) *nodev1.HistoryResponse {
	timeout := time.NewTimer(min(time.Duration(req.GetWaitMs())*time.Millisecond, maxWait))
	defer timeout.Stop()
	for {
		resp, fresh := h.look(req)
		if len(resp.GetEvents()) > 0 || resp.GetLost() || req.GetWaitMs() <= 0 {
			return resp
		}
		select {
		case <-fresh:
		case <-timeout.C:
			return resp
		case <-ctx.Done():
			return resp
		}
	}
}

func (h *History) look(req *nodev1.HistoryRequest) (*nodev1.HistoryResponse, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	resp := &nodev1.HistoryResponse{}
	if n := len(h.all); n > 0 {
		resp.Oldest, resp.Last = h.all[0], h.all[n-1]
	}
	after, heard := req.GetAfter(), req.GetAfterUnixNano()
	resp.Lost = after > 0 && !h.knows(after, heard)
	size := 0
	for _, ev := range h.all {
		switch {
		case after == 0 && ev.GetUnixNano() < req.GetSinceUnixNano():
			continue
		case resp.GetLost() && ev.GetHeardUnixNano() <= heard, !resp.GetLost() && ev.GetId() <= after:
			continue
		}
		if size += proto.Size(ev); size > partSize {
			break
		}
		resp.Events = append(resp.Events, ev)
	}
	return resp, h.fresh
}

// knows reports whether the event of that id and time is one of these, or older than all of them.
func (h *History) knows(id uint64, heard int64) bool {
	if len(h.all) == 0 || id > h.last {
		return false
	}
	i, found := slices.BinarySearchFunc(h.all, id, func(ev *nodev1.NodeEvent, id uint64) int {
		return int(ev.GetId()) - int(id)
	})
	if found {
		return heard == 0 || h.all[i].GetHeardUnixNano() == heard
	}
	return heard == 0 || i == 0 && heard < h.all[0].GetHeardUnixNano()
}

func key(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }
