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
	all map[string]*recentState // by place; as many as there are moves and writes under way
}

type recentState struct {
	record  *nodev1.Record // nil: none is kept
	store   *nodev1.StoreState
	at      time.Time
	writes  int    // under way
	version uint64 // of the newest write; what comes after it and is older is not kept
}

// begin tells of a write of a VM's record. Writes may end in another order than that of the store.
func (r *recent) begin(vm *nodev1.VM) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]*recentState{}
	}
	if r.all[place(vm)] == nil {
		r.all[place(vm)] = &recentState{}
	}
	r.all[place(vm)].writes++
}

// end tells what was written over a state, and keeps that while the VM is moved. What failed may be in the store yet.
func (r *recent) end(vm *nodev1.VM, was transition.State, rec *nodev1.Record, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.all[place(vm)]
	last.writes--
	version := max(rec.GetVersion(), was.Record.GetVersion()+1) // a write that failed has none, nor has a removal
	if version > last.version {
		last.version, last.record = version, nil
		op := rec.GetOperation()
		if err == nil && op.GetKind() == nodev1.Kind_KIND_MIGRATE && standsStillSoon(op.GetPhase()) {
			last.record, last.store, last.at = proto.CloneOf(rec), was.Store, time.Now()
		}
	}
	r.forget(vm)
}

// forget ends what says nothing any more; r.mu is held.
func (r *recent) forget(vm *nodev1.VM) {
	if last := r.all[place(vm)]; last != nil && last.record == nil && last.writes == 0 {
		delete(r.all, place(vm))
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
	last := r.all[place(c.vm)]
	if last == nil || last.record == nil {
		return transition.State{}, false
	}
	rec, op := last.record, last.record.GetOperation()
	last.record = nil
	r.forget(c.vm)
	if c.first != nil || c.asked.PendingDeletions || c.asked.Operation != op.GetId() {
		return transition.State{}, false
	}
	return transition.State{Record: rec, Store: last.store, Named: proto.CloneOf(op)}, true
}

// look answers the record of a VM that stands still; nil: the store has to be asked.
func (r *recent) look(req *nodev1.GetRequest, now time.Time) *nodev1.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.all[place(req.GetVm())]
	if last == nil || !req.GetRecent() || now.Sub(last.at) > recentMaxAge ||
		!standsStill(last.record.GetOperation().GetPhase()) ||
		req.GetUid() != "" && req.GetUid() != last.record.GetUid() {
		return nil
	}
	return proto.CloneOf(last.record)
}
