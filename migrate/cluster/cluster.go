// Package cluster is what the controller knows beside the records: the nodes, which
// announce themselves, and the events of moves. Both lie in the controller's store.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// Interval is how often a node announces itself; one that has missed three is not up.
	Interval = 5 * time.Second
	silence  = 3*Interval + time.Second

	// durable is how old the stored sign of a node may get while nothing else of it changes.
	durable = time.Minute
)

// Kinds of notes. What was decided about a node lies apart from what it says of itself:
// either is written without a look at the other.
const (
	kindNode     = "node"
	kindCordoned = "cordoned"
)

// Board is the cluster's.
type Board struct {
	notes  store.Notes
	shared bool // with other controllers: what they have heard counts too
	now    func() time.Time

	mu     sync.Mutex
	nodes  map[string]*nodev1.NodeInfo // with when they were seen last
	heard  map[string]sign
	stored map[string]time.Time // when they were written last
	closed map[string]bool      // the cordoned ones

	log events
}

// sign is the last that came of a node. Its time is by the clock of the controller that the node
// told it, which need not agree with this one's and may be set: how old it is counts from when it
// came here.
type sign struct {
	seen int64
	at   time.Time
}

// Open reads what is known. A shared board is read again for each question.
func Open(ctx context.Context, notes store.Notes, shared bool) (*Board, error) {
	b := &Board{notes: notes, shared: shared, now: time.Now, nodes: map[string]*nodev1.NodeInfo{}, heard: map[string]sign{}, stored: map[string]time.Time{}, closed: map[string]bool{}}
	if err := b.load(ctx); err != nil {
		return nil, err
	}
	return b, b.log.open(ctx, notes)
}

// load reads the nodes.
func (b *Board) load(ctx context.Context) error {
	cordoned, err := b.notes.Notes(ctx, kindCordoned, "")
	if err != nil {
		return err
	}
	all, err := b.notes.Notes(ctx, kindNode, "")
	if err != nil {
		return err
	}
	clear(b.closed)
	for _, n := range cordoned {
		b.closed[n.Key] = true
	}
	for _, n := range all {
		info := new(nodev1.NodeInfo)
		if err := proto.Unmarshal(n.Value, info); err != nil {
			return fmt.Errorf("decode node %s: %w: %w", n.Key, err, errdefs.ErrDataLoss)
		}
		b.hear(info) // what is stored is the last that was said, whoever's clock it bears
	}
	return nil
}

// hear takes what was said last of a node. What it said before this controller began may be of
// any age where others have a clock too: they are not taken for gone by that.
func (b *Board) hear(info *nodev1.NodeInfo) {
	name, seen, now := info.GetName(), info.GetSeenUnixNano(), b.now()
	b.nodes[name] = info
	last, known := b.heard[name]
	if known && last.seen == seen {
		return
	}
	at := now
	if !known && !b.shared {
		age := now.Sub(time.Unix(0, seen))
		if age < 0 { // the clock was set back
			age = silence
		}
		at = now.Add(-age)
	}
	b.heard[name] = sign{seen: seen, at: at}
}

// refresh is load where others write too. What cannot be read is as it was.
func (b *Board) refresh() {
	if !b.shared {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), refreshTimeout)
	defer cancel()
	if err := b.load(ctx); err != nil {
		slog.Warn("read the nodes", "error", err)
	}
}

const refreshTimeout = 2 * time.Second

// Leads reports whether controller self does what controller first has begun: it is the
// same one, or that one is gone and self is the next of those that are up.
func (b *Board) Leads(self, first string) bool {
	if !b.shared || self == first {
		return true
	}
	for _, n := range b.Nodes() {
		if n.GetController() && n.GetUp() && (n.GetName() == first || n.GetName() < self) {
			return false
		}
	}
	return true
}

// Announce takes a node's sign of life, and answers what is kept of it.
func (b *Board) Announce(ctx context.Context, said *nodev1.NodeInfo) (*nodev1.NodeInfo, error) {
	if said.GetName() == "" {
		return nil, fmt.Errorf("announce node: it has no name: %w", errdefs.ErrInvalidArgument)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	old := b.nodes[said.GetName()]
	info := proto.CloneOf(said)
	info.SeenUnixNano, info.Cordoned, info.Up, info.Vms = b.now().UnixNano(), false, false, 0
	same := old != nil && old.GetAddress() == info.GetAddress() && old.GetVersion() == info.GetVersion() && old.GetController() == info.GetController() && old.GetExecs() == info.GetExecs()
	if !same || b.shared || b.now().Sub(b.stored[info.GetName()]) > durable {
		if err := b.put(ctx, info); err != nil {
			return nil, err
		}
	}
	b.hear(info)
	return b.told(info), nil
}

func (b *Board) put(ctx context.Context, info *nodev1.NodeInfo) error {
	value, err := proto.Marshal(info)
	if err == nil {
		err = b.notes.Note(ctx, kindNode, info.GetName(), value)
	}
	if err != nil {
		return fmt.Errorf("store node %s: %w", info.GetName(), err)
	}
	b.stored[info.GetName()] = b.now()
	return nil
}

// told is info as others are told it: up says whether the node was heard lately.
func (b *Board) told(info *nodev1.NodeInfo) *nodev1.NodeInfo {
	info = proto.CloneOf(info)
	info.Cordoned = b.closed[info.GetName()]
	info.Up = b.now().Sub(b.heard[info.GetName()].at) < silence
	return info
}

// Nodes answers all, ordered by name.
func (b *Board) Nodes() []*nodev1.NodeInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	all := make([]*nodev1.NodeInfo, 0, len(b.nodes))
	for _, info := range b.nodes {
		all = append(all, b.told(info))
	}
	slices.SortFunc(all, func(x, y *nodev1.NodeInfo) int { return strings.Compare(x.GetName(), y.GetName()) })
	return all
}

// Node answers one.
func (b *Board) Node(name string) (*nodev1.NodeInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	info := b.nodes[name]
	if info == nil {
		return nil, fmt.Errorf("node %q has never announced itself to the controller (godwit nodes lists those that have): %w", name, errdefs.ErrNotFound)
	}
	return b.told(info), nil
}

// Cordon makes a node refuse VMs, or take them again.
func (b *Board) Cordon(ctx context.Context, name string, undo bool) (*nodev1.NodeInfo, error) {
	if _, err := b.Node(name); err != nil {
		return nil, err
	}
	var value []byte
	if !undo {
		value = []byte(b.now().UTC().Format(time.RFC3339))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.notes.Note(ctx, kindCordoned, name, value); err != nil {
		return nil, fmt.Errorf("cordon node %s: %w", name, err)
	}
	if delete(b.closed, name); !undo {
		b.closed[name] = true
	}
	return b.told(b.nodes[name]), nil
}
