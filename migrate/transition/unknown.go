package transition

import (
	"slices"
	"strings"
	"time"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// learn lists the snapshots that nodes report and that a store which was put back does not know. They
// come before all others, as if they were the oldest: a node's word has nothing deleted that the record
// knows. winner is who has the VM: it runs from the snapshot that its journal names.
func learn(rec *nodev1.Record, winner *Holder, holders []Holder, now time.Time) {
	for _, h := range holders {
		if !h.Has() && h.GetPhase() != "RELEASED" || h.GetUid() != rec.GetUid() ||
			!strings.HasPrefix(h.GetDigest(), "sha256:") || !OwnRepository(rec, h.GetRepository()) {
			continue
		}
		listed := func(ref *nodev1.SnapshotRef) bool { return ref.GetDigest() == h.GetDigest() }
		if slices.ContainsFunc(rec.GetSnapshots(), listed) || h.of(rec.GetOperation()) { // its commit lists it
			continue
		}
		runs := winner != nil && h.Node == winner.Node && h.GetPhase() == "OWN"
		if runs {
			spend(rec, h.GetDigest())
		}
		rec.Snapshots = slices.Insert(rec.Snapshots, 0, &nodev1.SnapshotRef{
			Digest: h.GetDigest(), Repository: h.GetRepository(), Generation: h.GetGeneration(), Operation: h.GetOperation(),
			Node:            h.Node,
			CreatedUnixNano: now.UnixNano(), Checkpoint: !runs, Found: true, Given: record.Given(rec, nil, h.GetRepository()),
		})
	}
}

// OwnRepository reports whether a repository is one of the VM's own: its last part is the VM's uid, or
// the record knows it.
func OwnRepository(rec *nodev1.Record, repository string) bool {
	prefix, own := strings.CutSuffix(repository, "/"+rec.GetUid())
	return own && prefix != "" && rec.GetUid() != "" || stores(rec, repository)
}

// rest are the deletions that a record leaves when it ends, for what the store may not know since it was put back:
// everything of the VM in its repositories. The node that does them lists those, and reads each manifest.
func rest(rec *nodev1.Record, req *nodev1.RemoveRequest, now time.Time) []*nodev1.Owed {
	if !record.MayHaveRest(rec) {
		return nil
	}
	var refs []*nodev1.SnapshotRef
	add := func(repository, node string, given bool) {
		if !record.InLayout(repository) {
			node = ""
		}
		ref := &nodev1.SnapshotRef{Digest: record.RestOf(rec.GetUid(), node), Repository: repository, Node: node,
			Given: given || record.Given(rec, nil, repository)}
		same := func(o *nodev1.SnapshotRef) bool {
			return o.GetRepository() == ref.GetRepository() && o.GetDigest() == ref.GetDigest()
		}
		if OwnRepository(rec, repository) && !slices.ContainsFunc(refs, same) {
			refs = append(refs, ref)
		}
	}
	for _, ref := range rec.GetSnapshots() {
		if ref.GetOrigin() == nil {
			add(ref.GetRepository(), ref.GetNode(), ref.GetGiven())
		}
	}
	add(rec.GetRepository(), rec.GetHome(), false)
	if op := rec.GetOperation(); op.GetSource() != "" { // it was writing there; a wake was reading
		add(op.GetRepository(), op.GetSource(), record.Given(rec, op, op.GetRepository()))
	}
	add(req.GetRepository(), req.GetPayer(), false)
	return pendingDeletions(rec, refs, req.GetPayer(), now)
}
