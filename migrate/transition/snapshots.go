package transition

import (
	"cmp"
	"slices"
	"time"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// list remembers the new snapshot for retention.
func list(rec *nodev1.Record, op *nodev1.Operation, now time.Time) {
	ref := refOf(rec, op, op.GetKind() == nodev1.Kind_KIND_CHECKPOINT)
	ref.CreatedUnixNano = now.UnixNano()
	ref.Name, ref.Pinned, ref.Manual = op.GetSnapshotName(), op.GetPinned(), op.GetManual()
	add(rec, ref)
}

// add lists a snapshot as the newest one, from which its VM goes on.
func add(rec *nodev1.Record, ref *nodev1.SnapshotRef) {
	ref.Parent = rec.GetBase()
	rec.Snapshots = append(rec.Snapshots, ref)
	rec.Base = ref.GetDigest()
}

// save lists the snapshot of an operation that is given up, if it got so far: it is whole
// in the store. Its VM runs on; if that dies, this is the newest state there is of it.
func save(rec *nodev1.Record, op *nodev1.Operation) {
	if unlisted(rec, op) {
		add(rec, refOf(rec, op, true))
	}
}

// unlisted reports whether op has made a snapshot that rec does not list. A wake makes
// none.
func unlisted(rec *nodev1.Record, op *nodev1.Operation) bool {
	listed := func(ref *nodev1.SnapshotRef) bool { return ref.GetDigest() == op.GetDigest() }
	return op.GetKind() != nodev1.Kind_KIND_WAKE && stored(op) && !slices.ContainsFunc(rec.GetSnapshots(), listed)
}

// refOf is the snapshot of op. It is no younger than the moment in which its VM stopped for it. Where that was not
// written down, it is no younger than its order.
func refOf(rec *nodev1.Record, op *nodev1.Operation, checkpoint bool) *nodev1.SnapshotRef {
	r, _ := record.ParseReceipt(op.GetReceipt()) // of one without a receipt nothing is told
	return &nodev1.SnapshotRef{
		Digest: op.GetDigest(), Repository: op.GetRepository(), Tag: op.GetTag(), Generation: op.GetGeneration(),
		Operation: op.GetId(), CreatedUnixNano: cmp.Or(r.StopAt, op.GetStartedUnixNano(), op.GetOpenedUnixNano()),
		Bytes: r.TotalBytes, NewBytes: r.PushedBytes, RamBytes: r.RAMBytes, Checkpoint: checkpoint, Node: op.GetSource(),
		Given: record.Given(rec, op, op.GetRepository()),
	}
}

// Restorable are the snapshots that a VM whose node is lost can be restored from, oldest
// first: those that are listed, and that of the open operation, if it has one by now.
func Restorable(rec *nodev1.Record) []*nodev1.SnapshotRef {
	refs := slices.Clone(rec.GetSnapshots())
	if op := rec.GetOperation(); op != nil && unlisted(rec, op) {
		refs = append(refs, refOf(rec, op, true))
	}
	return refs
}

// Newest is the snapshot from which a VM whose node is lost goes on: the last one of the line that ran, which is that
// of the open operation, else the record's base. A VM that went back to an older snapshot has left those which came
// after it. Of a record without a base it is the last one that is listed. nil: there is none.
func Newest(rec *nodev1.Record) *nodev1.SnapshotRef {
	refs := Restorable(rec)
	if len(refs) == len(rec.GetSnapshots()) {
		for _, ref := range refs {
			if ref.GetDigest() == rec.GetBase() {
				return ref
			}
		}
	}
	if len(refs) == 0 {
		return nil
	}
	return refs[len(refs)-1]
}
