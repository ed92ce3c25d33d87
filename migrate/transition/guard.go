package transition

import (
	"cmp"
	"slices"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Home is the node whose VM it is: the one that has it, else the one that had it last. Records of a build before do not
// have that: there it is the one that made its newest state. Empty: not known.
func Home(rec *nodev1.Record) string {
	if node := cmp.Or(rec.GetOwner().GetNode(), rec.GetHome()); node != "" {
		return node
	}
	for _, ref := range slices.Backward(rec.GetSnapshots()) {
		if ref.GetNode() != "" {
			return ref.GetNode()
		}
	}
	return ""
}

// guard keeps the snapshots that the copy knew of a VM which a node has by its word alone: neither was it that node's
// in the copy, nor was it on its way there. Only an order of the controller deletes them, or ends that (Pin). The next
// node has the VM that this one has given it.
func guard(rec, copied *nodev1.Record) {
	home := Home(rec)
	if home == Home(copied) || home == copied.GetOperation().GetDestination() {
		return
	}
	for _, ref := range rec.GetSnapshots() {
		ref.Guarded = true
	}
}

// Guarded is the snapshot of a VM that no order of a node deletes, nil: it is none. An empty digest names any of them.
func Guarded(rec *nodev1.Record, digest string) *nodev1.SnapshotRef {
	for _, ref := range rec.GetSnapshots() {
		if ref.GetGuarded() && (digest == "" || ref.GetDigest() == digest) {
			return ref
		}
	}
	return nil
}
