package store

import (
	"maps"
	"slices"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Which says what records a list is of: those for which one of these holds.
type Which struct {
	Node  string   // it owns the VM, or has a part in the open operation
	Moves bool     // the open operation is a move, or has no place yet
	UIDs  []string // of the VM

	Deleter string // of none of these, but of Found.HasDeletions
}

// Found is what Find answers.
type Found struct {
	Records      []*nodev1.Record
	State        *nodev1.StoreState // of the store itself, no newer than the records
	HasDeletions *bool              // Which.Deleter has a deletion to do; nil: not asked, or no index says it
	Unread       []Unread           // are there, and may be some of those that were asked for
}

// Has reports whether a record is one of these.
func (w Which) Has(rec *nodev1.Record) bool { return w.has()(rec) }

// has is Has of many records: each costs the same, however much is asked for.
func (w Which) has() func(*nodev1.Record) bool {
	asked := map[string]bool{}
	for _, n := range w.names() {
		asked[n] = true
	}
	return func(rec *nodev1.Record) bool {
		return slices.ContainsFunc(named(rec), func(n string) bool { return asked[n] })
	}
}

// WhichDeletions says what a list of deletions is of: those for which all of these hold.
type WhichDeletions struct {
	VM      *nodev1.VM // nil: of any
	Deleter string     // empty: any
}

// Has reports whether a pending deletion is one of these. A snapshot that is held is none.
func (d WhichDeletions) Has(o *nodev1.Owed) bool {
	vm := d.VM == nil || d.VM.GetNamespace() == o.GetVm().GetNamespace() && d.VM.GetId() == o.GetVm().GetId()
	return o.GetHold() == nil && vm && (d.Deleter == "" || d.Deleter == record.Deleter(o))
}

// The index has a name for each thing that a list may be of. An entry is NAME NUL KEY -> KEY, of
// a record or a pending deletion. It is written in the transaction of what it names. Builds
// before wrote none. So a reader that finds a record by an entry looks whether it is what was
// asked for. An index that such a build may have written past is made anew before it is read
// (Reindex).
const (
	ofNode    = "node\x00"
	ofMoves   = "move\x00"
	ofUID     = "uid\x00"
	ofDeleter = "payer\x00"
)

func deleterName(node string) string { return ofDeleter + node + "\x00" }

func (w Which) names() (all []string) {
	if w.Node != "" {
		all = append(all, ofNode+w.Node+"\x00")
	}
	if w.Moves {
		all = append(all, ofMoves)
	}
	for _, uid := range w.UIDs {
		all = append(all, ofUID+uid+"\x00")
	}
	return all
}

// named are the names that a record has in the index; none of one that is not there.
func named(rec *nodev1.Record) []string {
	if rec == nil {
		return nil
	}
	op := rec.GetOperation()
	all := map[string]bool{ofUID + rec.GetUid() + "\x00": true}
	for _, node := range []string{rec.GetOwner().GetNode(), op.GetSource(), op.GetDestination()} {
		if node != "" {
			all[ofNode+node+"\x00"] = true
		}
	}
	if op.GetKind() == nodev1.Kind_KIND_MIGRATE || record.Unplaced(op) {
		all[ofMoves] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// entries are the keys in the index of what has these names.
func entries(names []string, key []byte) map[string]bool {
	all := map[string]bool{}
	for _, n := range names {
		all[n+string(key)] = true
	}
	return all
}

// change answers which entries go and which come where a record becomes another one.
func entryChange(key []byte, before, after *nodev1.Record) (gone, come []string) {
	old, now := entries(named(before), key), entries(named(after), key)
	for e := range old {
		if !now[e] {
			gone = append(gone, e)
		}
	}
	for e := range now {
		if !old[e] {
			come = append(come, e)
		}
	}
	slices.Sort(gone)
	slices.Sort(come)
	return gone, come
}

// pendingEntry is a pending deletion's key in the index.
func pendingEntry(o *nodev1.Owed) string {
	return deleterName(record.Deleter(o)) + string(keyOf(o))
}

func keyOf(o *nodev1.Owed) []byte {
	return pendingKey(o.GetVm(), o.GetSnapshot().GetRepository(), o.GetSnapshot().GetDigest())
}
