// Package cluster is what the controller knows in addition to the records: the nodes, which announce themselves,
// and the events of moves. Both lie in the controller's store.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/internal/nearest"
	"godwit.dev/godwit/migrate/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// Interval is how often a node announces itself; one that has missed three is not up.
	Interval = 5 * time.Second
	silence  = 3*Interval + time.Second

	// Silence is after how long without a sign a node, or a controller, is no longer counted on.
	Silence = silence
)

// Kinds of notes. What was decided about a node lies apart from what it says of itself:
// either is written without a look at the other.
const (
	kindNode     = "node"
	kindCordoned = "cordoned"
)

// State is what is known of the cluster: its nodes, and the events of moves.
type State struct {
	notes  store.Notes
	shared bool // with other controllers: what they have heard counts too
	now    func() time.Time

	mu             sync.Mutex
	self           string // this controller's node; empty: not known
	nodes          map[string]*known
	controllers    map[string]*known // of nodes: those that are, or were, controllers
	closed         map[string]bool   // the cordoned ones
	asked          uint64            // reads of the store that were begun
	told           uint64            // the newest of those that were taken
	read           time.Time         // when that was
	maintained     time.Time
	listeningSince time.Time // since when this controller hears for itself

	log events
}

// Open reads what is known. A shared one is read again for each question.
func Open(ctx context.Context, notes store.Notes, shared bool) (*State, error) {
	b := &State{notes: notes, shared: shared, now: time.Now, nodes: map[string]*known{}, controllers: map[string]*known{},
		closed: map[string]bool{}}
	if err := b.load(ctx); err != nil {
		return nil, err
	}
	return b, b.log.open(ctx, notes)
}

// SetSelf says which node's controller this is: what its nodes say is under that name in the store. It answers
// whether a controller of a build before, which keeps no index, may have written to the store last.
func (b *State) SetSelf(self string) (before bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.self = self
	for _, k := range b.nodes {
		before = before || k.note.GetController() && k.note.GetKeeps() < keeps
	}
	return before
}

// load reads the nodes. What was begun later and is read already is newer.
func (b *State) load(ctx context.Context) error {
	b.mu.Lock()
	b.asked++
	mine := b.asked
	b.mu.Unlock()
	cordoned, err := b.notes.Notes(ctx, kindCordoned, "")
	if err != nil {
		return err
	}
	all, err := b.notes.Notes(ctx, kindNode, "")
	if err != nil {
		return err
	}
	infos := make([]*nodev1.NodeInfo, len(all))
	for i, n := range all {
		infos[i] = new(nodev1.NodeInfo)
		if err := proto.Unmarshal(n.Value, infos[i]); err != nil {
			return fmt.Errorf("decode node %s: %w: %w", n.Key, err, errdefs.ErrDataLoss)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if mine < b.told {
		return nil
	}
	b.told, b.read = mine, b.now()
	clear(b.closed)
	for _, n := range cordoned {
		b.closed[n.Key] = true
	}
	for _, info := range infos {
		b.takeNote(info) // what is stored is the last that was said, by any clock
	}
	return nil
}

// refresh is load where others write too.
func (b *State) refresh(ctx context.Context) error {
	if !b.shared {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	if err := b.load(ctx); err != nil {
		return fmt.Errorf("read the nodes: %w", err)
	}
	return nil
}

// tryRefresh is refresh for who is answered in any case: what cannot be read is as it was.
func (b *State) tryRefresh() {
	if err := b.refresh(context.Background()); err != nil {
		slog.Warn("nodes are told as they were", "error", err)
	}
}

const (
	refreshTimeout = 2 * time.Second

	// stateAge is how old what is known may be where each of many moves asks who drives it.
	stateAge = time.Second
)

// Leads reports whether controller self does what controller first has begun: it is the
// same one, or that one is gone and self is the next of those that are up.
func (b *State) Leads(self, first string) bool {
	if !b.shared || self == first {
		return true
	}
	b.mu.Lock()
	old := b.now().Sub(b.read).Abs() >= stateAge
	b.mu.Unlock()
	if old {
		b.tryRefresh()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, k := range b.controllers {
		if k.last().GetController() && b.up(k) && (name == first || name < self) {
			return false
		}
	}
	return true
}

// Announce takes a node's heartbeat, and answers what is kept of it. The store is written to
// where the heartbeat changes something.
func (b *State) Announce(ctx context.Context, said *nodev1.NodeInfo) (*nodev1.NodeInfo, error) {
	if said.GetName() == "" {
		return nil, fmt.Errorf("announce node: it has no name: %w", errdefs.ErrInvalidArgument)
	}
	info := proto.CloneOf(said)
	info.Cordoned, info.Up, info.Vms, info.Silent, info.Keeps = false, false, 0, false, 0
	b.mu.Lock()
	info.SeenUnixNano, info.HeardBy = b.now().UnixNano(), b.self
	if info.GetController() && info.GetName() == b.self {
		info.Keeps = keeps
	}
	news := b.changed(b.nodes[info.GetName()], info)
	b.mu.Unlock()
	if news {
		note := proto.CloneOf(info)
		note.CpuClasses, note.Vmms = nil, nil // the node says them again
		if err := b.put(ctx, note); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.nodes[info.GetName()]
	k.said, k.at = info, b.now()
	b.noteController(info, k)
	return b.tell(k), nil
}

// tell is a node as others are told of it: up says whether it was heard lately.
func (b *State) tell(k *known) *nodev1.NodeInfo {
	info := proto.CloneOf(k.last())
	info.Cordoned, info.Up, info.SeenUnixNano = b.closed[info.GetName()], b.up(k), b.seen(k)
	info.HeardBy, info.Silent, info.Keeps = "", false, 0
	return info
}

// Nodes answers all, ordered by name.
func (b *State) Nodes() []*nodev1.NodeInfo {
	b.tryRefresh()
	return b.CachedNodes()
}

// CachedNodes is Nodes as Maintain has read them.
func (b *State) CachedNodes() []*nodev1.NodeInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]*nodev1.NodeInfo, 0, len(b.nodes))
	for _, k := range b.nodes {
		all = append(all, b.tell(k))
	}
	slices.SortFunc(all, func(x, y *nodev1.NodeInfo) int { return strings.Compare(x.GetName(), y.GetName()) })
	return all
}

// Heard is a node as this controller knows it.
type Heard struct {
	Info *nodev1.NodeInfo
	Said bool // it is what the node has said here, last. Else it is a note
}

// Heard answers all nodes that have VMs, as Maintain has read them. Nothing is asked.
func (b *State) Heard() (all []Heard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.nodes {
		if !k.last().GetControllerOnly() {
			all = append(all, Heard{b.tell(k), k.last() == k.said})
		}
	}
	return all
}

// Names are those of all nodes, in order.
func (b *State) Names() (names []string) {
	for _, n := range b.Nodes() {
		names = append(names, n.GetName())
	}
	return names
}

// Node answers one.
func (b *State) Node(name string) (*nodev1.NodeInfo, error) {
	b.tryRefresh()
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.nodes[name]
	if k == nil {
		meant := nearest.Question(name, slices.Sorted(maps.Keys(b.nodes)))
		return nil, fmt.Errorf("there is no node %q. %sTo see all nodes: godwit nodes: %w", name,
			strings.TrimLeft(meant+" ", " "), errdefs.ErrNotFound)
	}
	return b.tell(k), nil
}

// Cordon makes a node refuse VMs, or take them again.
func (b *State) Cordon(ctx context.Context, name string, undo bool) (*nodev1.NodeInfo, error) {
	if _, err := b.Node(name); err != nil {
		return nil, err
	}
	var value []byte
	if !undo {
		value = []byte(b.now().UTC().Format(time.RFC3339))
	}
	if err := b.notes.Note(ctx, kindCordoned, name, value); err != nil {
		return nil, fmt.Errorf("cordon node %s: %w", name, err)
	}
	b.mu.Lock()
	if delete(b.closed, name); !undo {
		b.closed[name] = true
	}
	b.asked++
	b.told = b.asked // what was begun before this is older
	b.mu.Unlock()
	return b.Node(name)
}
