package controller

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// recentMaxAge is how old a record may be that is answered without the store. It is much less than SettleDelay: a
// store that was put back from a copy has decided nothing about a VM by then.
const recentMaxAge = 5 * time.Second

// recent is what this controller wrote last of VMs that are moved while they run. Such a VM stands still while its
// record is written, so it should not wait for reads as well.
//
// A change that is made from it is written by compare-and-swap, which proves that it was the last. What is no write is
// decided anew, from the store.
type recent struct {
	mu  sync.Mutex
	all map[string]recentState // by place; as many as there are moves under way
}

type recentState struct {
	record *nodev1.Record
	store  *nodev1.StoreState
	at     time.Time
}

// note keeps a record that was written, while its VM is moved.
func (r *recent) note(was transition.State, rec *nodev1.Record) {
	if op := rec.GetOperation(); op.GetKind() != nodev1.Kind_KIND_MIGRATE || !standsStillSoon(op.GetPhase()) {
		return // take has removed what was kept
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]recentState{}
	}
	if key := place(rec.GetVm()); r.all[key].record.GetVersion() < rec.GetVersion() { // else a later write came before
		r.all[key] = recentState{proto.CloneOf(rec), was.Store, time.Now()}
	}
}

func standsStillSoon(p nodev1.Phase) bool {
	return p == nodev1.Phase_PHASE_TRANSFERRING || standsStill(p)
}

func standsStill(p nodev1.Phase) bool {
	return p == nodev1.Phase_PHASE_SWITCHING || p == nodev1.Phase_PHASE_COMMITTED
}

// take answers the state that a call may be decided from first. It is not kept: a call that fails leaves nothing to
// begin from.
func (r *recent) take(c call) (transition.State, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.all[place(c.vm)]
	delete(r.all, place(c.vm))
	op := last.record.GetOperation()
	if !ok || c.first != nil || c.asked.PendingDeletions || c.asked.Operation != op.GetId() {
		return transition.State{}, false
	}
	return transition.State{Record: last.record, Store: last.store, Named: proto.CloneOf(op)}, true
}

// look answers the record of a VM that stands still; nil: the store has to be asked.
func (r *recent) look(req *nodev1.GetRequest, now time.Time) *nodev1.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.all[place(req.GetVm())]
	if !ok || !req.GetRecent() || now.Sub(last.at) > recentMaxAge || !standsStill(last.record.GetOperation().GetPhase()) ||
		req.GetUid() != "" && req.GetUid() != last.record.GetUid() {
		return nil
	}
	return proto.CloneOf(last.record)
}
