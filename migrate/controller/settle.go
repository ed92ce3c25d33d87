package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Maintain settles the records once all nodes have reported, and has them change again. Killed at any
// place, the next call goes on there.
func (i *Incarnations) Maintain(ctx context.Context) error {
	state, err := i.store.State(ctx)
	if err != nil || !state.GetWaiting() {
		return err
	}
	if lasted := i.wait.lasted(state.GetIncarnation(), i.now()); len(state.GetMissing()) > 0 || lasted < SettleDelay {
		return nil
	}
	if len(i.unchecked()) > 0 { // what they admit meanwhile is in no report
		return nil
	}
	if !i.settling.TryLock() {
		return nil
	}
	defer i.settling.Unlock()
	all, err := i.reports(ctx, state)
	if err != nil {
		return err
	}
	conflicts, err := i.settle(ctx, state, all)
	if err != nil {
		if errdefs.IsConflict(err) { // the state changed meanwhile: the next call looks at it
			return nil
		}
		return fmt.Errorf("settle the records of incarnation %d: %w", state.GetIncarnation(), err)
	}
	open := proto.CloneOf(state)
	open.Waiting, open.Reported, open.Conflicts = false, nil, conflicts
	if _, err := i.store.SetState(ctx, state.GetVersion(), open); err != nil {
		if errdefs.IsConflict(err) {
			return nil
		}
		return err
	}
	return i.forget(ctx, state)
}

// forget drops the reports, which are settled: that there was one of this incarnation stays (spoken).
func (i *Incarnations) forget(ctx context.Context, state *nodev1.StoreState) error {
	notes, err := i.notes.Notes(ctx, kindReport, "")
	errs := []error{err}
	for _, n := range notes {
		var left []byte
		if strings.HasPrefix(n.Key, reportKey(state, "")) {
			left = []byte{}
		}
		errs = append(errs, i.notes.Note(ctx, kindReport, n.Key, left))
	}
	return errors.Join(errs...)
}

// settle makes every record what the reports say, and counts those that contradict each other.
// A change is made under state: none is, once that is another one.
func (i *Incarnations) settle(ctx context.Context, state *nodev1.StoreState,
	reports []*nodev1.ReportRequest) (conflicts uint32, err error) {
	vms, holders := map[string]*nodev1.VM{}, map[string][]transition.Holder{}
	all, err := i.store.List(ctx, "", 0)
	if err != nil {
		return 0, err
	}
	uids, known := uidsOf(all, reports), map[string]bool{}
	for _, rec := range all {
		vms[place(rec.GetVm())], known[rec.GetUid()] = rec.GetVm(), true
	}
	for _, r := range reports {
		for _, h := range r.GetHeld() {
			key := place(h.GetVm())
			if uids[h.GetUid()] != key || !known[h.GetUid()] && !record.IsUID(h.GetUid()) {
				conflicts++
				continue
			}
			vms[key], holders[key] = h.GetVm(), append(holders[key], transition.Holder{Node: r.GetNode(), Held: h})
		}
	}
	for key, vm := range vms {
		rec, err := i.settleOne(ctx, state, vm, holders[key])
		if errdefs.IsInvalidArgument(err) { // no record can have that name
			conflicts++
			continue
		}
		if err != nil {
			return 0, err
		}
		if rec.GetConflict() != "" {
			conflicts++
		}
	}
	return conflicts, nil
}

// uidsOf is the VM of each uid, by its place: the one whose record has it, else the one that nodes name.
// Where they name two, it is none: with a record of another VM's uid a node could have that VM's
// snapshots deleted, for which the uid is the proof.
func uidsOf(all []*nodev1.Record, reports []*nodev1.ReportRequest) map[string]string {
	named := map[string]string{}
	for _, r := range reports {
		for _, h := range r.GetHeld() {
			key := place(h.GetVm())
			if known, twice := named[h.GetUid()]; twice && known != key {
				key = ""
			}
			named[h.GetUid()] = key
		}
	}
	for _, rec := range all {
		named[rec.GetUid()] = place(rec.GetVm())
	}
	return named
}

func (i *Incarnations) settleOne(ctx context.Context, state *nodev1.StoreState, vm *nodev1.VM,
	holders []transition.Holder) (*nodev1.Record, error) {
	st, err := i.store.Load(ctx, vm, transition.Asked{})
	if err != nil {
		return nil, err
	}
	st.Store, st.Record = state, transition.Lift(st.Record, state.GetIncarnation())
	st.Reserved = i.Reserved != nil && i.Reserved(vm)
	change, err := transition.Settle(st, vm, holders, i.now())
	if err != nil || change.Record == st.Record {
		return st.Record, err
	}
	change.Under = state.GetVersion()
	return i.store.Apply(ctx, vm, st.Record.GetVersion(), change)
}
