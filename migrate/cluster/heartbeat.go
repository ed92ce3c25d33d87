package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// keeps is what this build's controllers keep in addition to the records: the index of the store (1).
const keeps = 1

// renewAfter is after how long the note of a node is written again though nothing of it has changed.
const renewAfter = 6 * time.Hour

// known is a node as this controller knows it. Times are by its own clock: that of the controller
// that was told a sign need not agree, and may be set.
type known struct {
	said *nodev1.NodeInfo // to this controller, last; nil: nothing yet
	at   time.Time        // when it was said

	note    *nodev1.NodeInfo // in the store; nil: none
	noteAt  time.Time        // when the time that it names was new here
	renewed time.Time        // when it is written again at the latest
}

func (k *known) last() *nodev1.NodeInfo {
	if k.said != nil && (k.note == nil || !k.at.Before(k.noteAt)) {
		return k.said
	}
	return k.note
}

// takeNote takes a node's note. A restart of the controller is no silence of nodes: one whose note
// says nothing of silence has as long to be heard as if it had just been.
func (b *State) takeNote(note *nodev1.NodeInfo) {
	now := b.now()
	k := b.nodes[note.GetName()]
	switch {
	case k == nil:
		k = &known{noteAt: now, renewed: b.renewal()}
		b.nodes[note.GetName()] = k
		if note.GetHeardBy() == "" && !b.shared { // of a build before, which wrote each minute
			age := now.Sub(time.Unix(0, note.GetSeenUnixNano()))
			if age < 0 { // the clock was set back
				age = silence
			}
			k.noteAt = now.Add(-age)
		}
	case k.note.GetSeenUnixNano() != note.GetSeenUnixNano():
		k.noteAt = now
	}
	k.note = note
	b.noteController(note, k)
}

// noteController remembers a controller: each sign of a node asks what they keep, and there are few of them.
func (b *State) noteController(said *nodev1.NodeInfo, k *known) {
	if said.GetController() {
		b.controllers[said.GetName()] = k
	}
}

// renewal is some time before the note of a node is too old: those of a fleet are not written at once.
func (b *State) renewal() time.Time {
	return b.now().Add(renewAfter/2 + rand.N(renewAfter/2))
}

// fresh reports whether the note of a node was new lately.
func (b *State) fresh(k *known) bool {
	return k != nil && k.note != nil && !k.note.GetSilent() && b.now().Sub(k.noteAt) < silence
}

// voucher is the controller that hears a node and says so by its own signs; nil: there is none
// but those that write each sign of the node, as builds before do.
func (b *State) voucher(k *known) *known {
	by := k.note.GetHeardBy()
	if by == "" || by == b.self || by == k.note.GetName() || k.note.GetSilent() {
		return nil
	}
	return b.nodes[by]
}

// up reports whether a node was heard lately, here or by a controller that is heard itself.
func (b *State) up(k *known) bool {
	return k.said != nil && b.now().Sub(k.at) < silence || b.fresh(k) || b.fresh(b.voucher(k))
}

// seen is the time of the last sign, by the clock of the controller that was told it.
func (b *State) seen(k *known) int64 {
	seen := k.last().GetSeenUnixNano()
	if v := b.voucher(k); v != nil && k.last() == k.note {
		seen = max(seen, v.note.GetSeenUnixNano())
	}
	return seen
}

// allKeepIndex reports whether every controller that is up takes the word of the others for their
// nodes, and keeps the index of the store.
func (b *State) allKeepIndex() bool {
	if b.self == "" {
		return false
	}
	for _, k := range b.controllers {
		if k.last().GetController() && k.last().GetKeeps() < keeps && b.up(k) {
			return false
		}
	}
	return true
}

// changed reports whether what a node says is to be written down: something has changed, or who hears
// it. Of a controller each sign is: it vouches for the nodes that tell it theirs.
func (b *State) changed(k *known, said *nodev1.NodeInfo) bool {
	if k == nil || k.note == nil {
		return true
	}
	note := k.note
	switch {
	case note.GetSilent(), note.GetHeardBy() != said.GetHeardBy(), b.now().After(k.renewed),
		note.GetAddress() != said.GetAddress(), note.GetVersion() != said.GetVersion(),
		note.GetController() != said.GetController(),
		note.GetExecs() != said.GetExecs(), note.GetRamBytes() != said.GetRamBytes(), note.GetKeeps() != said.GetKeeps():
		return true
	case !b.shared:
		return false
	}
	moved := max(note.GetFreeBytes(), said.GetFreeBytes()) - min(note.GetFreeBytes(), said.GetFreeBytes())
	return moved > said.GetRamBytes()/16 || said.GetName() == b.self || !b.allKeepIndex()
}

// written takes a note that this controller has written.
func (b *State) written(note *nodev1.NodeInfo) {
	k := b.nodes[note.GetName()]
	if k == nil {
		k = &known{}
		b.nodes[note.GetName()] = k
	}
	k.note, k.noteAt, k.renewed = note, b.now(), b.renewal()
	b.noteController(note, k)
}

// Maintain reads what others have written, and notes of whom nothing was heard for too long: a
// controller that starts, and the others, know it then. Call it every Interval.
func (b *State) Maintain(ctx context.Context) error {
	if err := b.refresh(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	now := b.now()
	// this controller hears no other one
	if self := b.nodes[b.self]; now.Sub(b.maintained) > 3*Interval || b.shared && !b.fresh(self) {
		b.listeningSince = now
	}
	b.maintained = now
	var lost []*nodev1.NodeInfo
	for _, k := range b.nodes {
		mine := k.note != nil && !k.note.GetSilent() && k.note.GetName() != b.self &&
			(!b.shared || k.note.GetHeardBy() == b.self)
		if mine && !b.up(k) && now.Sub(b.listeningSince) >= silence {
			note := proto.CloneOf(k.note)
			note.SeenUnixNano, note.Silent, note.HeardBy = b.seen(k), true, b.self
			lost = append(lost, note)
		}
	}
	b.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(16)
	errs := make([]error, len(lost))
	for i, note := range lost {
		group.Go(func() error {
			errs[i] = b.put(ctx, note)
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	return errors.Join(errs...)
}

// Fresh reports whether the nodes were read just now.
func (b *State) Fresh() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.shared || b.now().Sub(b.read).Abs() < stateAge
}

// put writes a note down.
func (b *State) put(ctx context.Context, note *nodev1.NodeInfo) error {
	value, err := proto.Marshal(note)
	if err == nil {
		err = b.notes.Note(ctx, kindNode, note.GetName(), value)
	}
	if err != nil {
		return fmt.Errorf("store node %s: %w", note.GetName(), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.written(note)
	return nil
}

// Indexed reports whether every controller that writes to the store keeps its index, as far as is known. Before
// this controller has said anything, it reports whether that was so when the store was last written to.
func (b *State) Indexed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.allKeepIndex()
}

// Unchecked are the other controllers that are up and of a build that may not compare the store's own
// state with each change: while a store that was put back waits, they would admit claims.
func (b *State) Unchecked() (names []string) {
	if !b.shared {
		return nil
	}
	b.tryRefresh()
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, k := range b.nodes {
		if name != b.self && k.last().GetController() && k.last().GetKeeps() < keeps && b.up(k) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
