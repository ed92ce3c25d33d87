package controller

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Get implements nodev1.RecordsService.
func (s *Service) Get(ctx context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	if !req.GetChanges() && !req.GetRemoves() {
		if rec := s.recent.look(req, time.Now()); rec != nil {
			return rec, nil
		}
	}
	state, err := s.load(ctx, req.GetVm(), transition.Asked{})
	if err == nil {
		err = cmp.Or(transition.CheckNamed(req.GetVm(), state.Record), s.allows(ctx, req, state))
	}
	if err != nil {
		return nil, err
	}
	if uid := req.GetUid(); uid != "" && state.Record.GetUid() != uid {
		if removed, err := s.removed(ctx, uid); err != nil || removed {
			return &nodev1.Record{Vm: req.GetVm(), Uid: uid, Removed: removed}, err
		}
	}
	if state.Record == nil {
		return nil, fmt.Errorf("the controller knows no VM %s/%s. To see all VMs: godwit ps -a -A: %w",
			req.GetVm().GetNamespace(), req.GetVm().GetId(), errdefs.ErrNotFound)
	}
	return state.Record, nil
}

// Remove implements nodev1.RecordsService. To call a node lost is the controller's own, as in
// Open, and so is to say which snapshots stay.
func (s *Service) Remove(ctx context.Context, req *nodev1.RemoveRequest) (*nodev1.RemoveResponse, error) {
	nodes := holders
	if req.GetLostNode() != "" || len(req.GetHold()) > 0 {
		nodes = controllerOnly
	}
	first := func(st transition.State) error {
		return s.noteRemoved(ctx, st.Record, !req.GetDropSnapshots() && len(st.Record.GetSnapshots()) > 0)
	}
	_, err := s.update(ctx, call{vm: req.GetVm(), nodes: nodes, first: first,
		do: func(st transition.State) (transition.Change, error) {
			order, err := s.keeps(ctx, st.Record, req)
			if err != nil {
				return transition.Change{}, err
			}
			return transition.Remove(st, order, s.now())
		}})
	if err != nil {
		return nil, err
	}
	return &nodev1.RemoveResponse{}, nil
}

// kindRemoved is of the notes that say whose record was removed. The key is the uid. The value has the time in unix ns,
// big endian, and a byte that is 1 where snapshots were kept. After that comes the node that removed it. A node that
// holds something of a VM, and finds no record of it, has that as the proof that it was given up. A note is made before
// the record goes: where there is a note and no record, the record was removed.
const kindRemoved = "removed"

// Remembered is how many removals of one node are remembered. What a node holds of older ones stays there until
// somebody gives it up by hand. So no node has those forgotten that another one has made.
const Remembered = 4096

// rememberedOfAll is how many there are of all nodes. Where there are more, those who have made most lose theirs first.
const rememberedOfAll = 4 * Remembered

// noteRemoved notes that a record is being removed. The uid of a VM whose snapshots are kept is remembered longer: who
// gets that uid has these snapshots.
func (s *Service) noteRemoved(ctx context.Context, rec *nodev1.Record, kept bool) error {
	notes, ok := s.store.(store.Notes)
	if !ok || rec.GetGeneration() == 0 { // it had no owner
		return nil
	}
	value := binary.BigEndian.AppendUint64(nil, uint64(s.now().UnixNano()))
	if value = append(value, 0); kept {
		value[removedKept] = 1
	}
	node, _ := Peer(ctx)
	err := notes.Note(ctx, kindRemoved, rec.GetUid(), append(value, node...))
	if err == nil && s.removedNotes.Add(1)%(Remembered/16) == 0 {
		err = dropOldestNotes(ctx, notes)
	}
	if err != nil {
		return fmt.Errorf("note that the record of VM %s/%s is removed: %w", rec.GetVm().GetNamespace(), rec.GetVm().GetId(),
			err)
	}
	return nil
}

// removedKept is the place of that byte. Notes of builds before end before it.
const removedKept = 8

// dropOldestNotes drops the oldest of each node that has too many.
func dropOldestNotes(ctx context.Context, notes store.Notes) error {
	all, err := notes.Notes(ctx, kindRemoved, "")
	if err != nil || len(all) <= Remembered {
		return err
	}
	by := map[string][]store.Note{}
	for _, n := range all {
		node := string(n.Value[min(len(n.Value), removedKept+1):])
		by[node] = append(by[node], n)
	}
	share := shareOf(by)
	for _, of := range by {
		slices.SortFunc(of, compareRemovals)
		for _, n := range of[:max(0, len(of)-share)] {
			if err := notes.Note(ctx, kindRemoved, n.Key, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// shareOf is how many notes each node may have, so that there are no more than may be.
func shareOf(by map[string][]store.Note) (share int) {
	for share = Remembered; share > 0; share-- {
		total := 0
		for _, of := range by {
			total += min(len(of), share)
		}
		if total <= rememberedOfAll {
			break
		}
	}
	return share
}

// compareRemovals has those first that are forgotten first.
func compareRemovals(a, b store.Note) int {
	kept := func(n store.Note) int {
		if len(n.Value) > removedKept {
			return int(n.Value[removedKept])
		}
		return 0
	}
	return cmp.Or(cmp.Compare(kept(a), kept(b)), cmp.Compare(string(a.Value), string(b.Value)))
}

// removed reports whether the record of a VM is known to have been removed.
func (s *Service) removed(ctx context.Context, uid string) (bool, error) {
	notes, ok := s.store.(store.Notes)
	if !ok {
		return false, nil
	}
	_, there, err := notes.NoteOf(ctx, kindRemoved, uid)
	if err != nil {
		return false, fmt.Errorf("look whether the record of VM uid %s was removed: %w", uid, err)
	}
	return there, nil
}
