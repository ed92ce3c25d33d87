package transition

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Trim moves a snapshot from the list to the pending deletions. It is the one decision to delete
// one: nothing is deleted before it, and nothing restores the snapshot after it.
func Trim(s State, req *nodev1.TrimRequest, now time.Time) (Change, error) {
	rec, digest := s.Record, req.GetDigest()
	if rec == nil {
		return Change{}, missing(req.GetVm())
	}
	if !sameUID(rec, req.GetUid()) {
		return Change{}, fresh(rec, "trim a snapshot of", req.GetUid(), rec.GetGeneration())
	}
	if req.GetSpent() != "" {
		if c, err := noteEnded(s, req, now); c != nil || err != nil {
			return *cmp.Or(c, &Change{}), err
		}
		digest = req.GetSpent()
	}
	listed := func(ref *nodev1.SnapshotRef) bool { return ref.GetDigest() == digest }
	i := slices.IndexFunc(rec.GetSnapshots(), listed)
	if i < 0 {
		return keep(s)
	}
	if use := InUse(rec, digest); use != "" {
		return Change{}, fmt.Errorf("trim snapshot %s of VM %s: %s: %w", digest, name(rec.GetVm()), use,
			errdefs.ErrFailedPrecondition)
	}
	ref := rec.GetSnapshots()[i]
	if err := firm(rec, ref, req.GetOrdered()); err != nil {
		return Change{}, err
	}
	rec = edit(s)
	rec.Snapshots = slices.DeleteFunc(rec.Snapshots, listed)
	adopt(rec, ref)
	return Change{Record: rec, PendingDeletions: pendingDeletions(rec, []*nodev1.SnapshotRef{ref}, req.GetPayer(), now)},
		nil
}

// Schedule sets when checkpoints are taken. It changes nothing else.
func Schedule(s State, req *nodev1.ScheduleRequest) (Change, error) {
	rec, want := s.Record, req.GetSchedule()
	switch {
	case rec == nil:
		return Change{}, missing(req.GetVm())
	case !sameUID(rec, req.GetUid()):
		return Change{}, fresh(rec, "schedule checkpoints of", req.GetUid(), rec.GetGeneration())
	case want.GetEveryMs() < 0 || want.GetEveryMs() > 0 && want.GetEveryMs() < MinEvery.Milliseconds():
		return Change{}, fmt.Errorf("schedule checkpoints of VM %s: every %d ms: %v at least: %w", name(rec.GetVm()),
			want.GetEveryMs(), MinEvery, errdefs.ErrInvalidArgument)
	case want.GetEveryMs() > 0 && (want.GetKeep() == 0 || want.GetKeep() > MaxKept):
		return Change{}, fmt.Errorf("schedule checkpoints of VM %s: keep %d: from 1 to %d: %w", name(rec.GetVm()),
			want.GetKeep(), MaxKept, errdefs.ErrInvalidArgument)
	}
	if want.GetEveryMs() == 0 {
		want = nil
	}
	if proto.Equal(rec.GetSchedule(), want) {
		return keep(s)
	}
	rec = edit(s)
	rec.Schedule = proto.CloneOf(want)
	return Change{Record: rec}, nil
}

// MinEvery and MaxKept bound a schedule.
const (
	MinEvery = 10 * time.Second
	MaxKept  = 100
)

// InUse says why a snapshot of a VM must stay; empty: nothing keeps it but the retention
// rule.
func InUse(rec *nodev1.Record, digest string) string {
	op, spent := rec.GetOperation(), rec.GetSpent()
	switch {
	case digest == rec.GetOwner().GetDigest():
		return "it owns the VM"
	case digest == rec.GetLost():
		return "it is what is left of the VM, which was lost"
	case record.IsLost(rec) && digest == rec.GetBase():
		return "the VM, which was lost, ran from it last"
	case record.IsLost(rec) && slices.ContainsFunc(rec.GetSnapshots(), func(ref *nodev1.SnapshotRef) bool {
		return ref.GetFound() && ref.GetDigest() == digest
	}):
		return "it may be what is left of the VM, which was lost"
	case op != nil && digest == op.GetDigest():
		return "operation " + op.GetId() + " uses it"
	case op != nil && !Committed(op.GetPhase()):
		return "operation " + op.GetId() + " is under way"
	case rec.GetOwner().GetNode() != "" && len(spent) > 0 && spent[len(spent)-1] == digest:
		return "the VM runs from it, and its next snapshot builds on it"
	}
	return ""
}

// pendingDeletions leaves out the snapshot that the VM began from: it is held elsewhere (Begin).
func pendingDeletions(rec *nodev1.Record, refs []*nodev1.SnapshotRef, deleter string,
	now time.Time) (pending []*nodev1.Owed) {
	for _, ref := range refs {
		if ref.GetOrigin() != nil {
			continue
		}
		pending = append(pending, &nodev1.Owed{Vm: rec.GetVm(), Uid: rec.GetUid(), Snapshot: ref, Payer: deleter,
			SinceUnixNano: now.UnixNano()})
	}
	return pending
}

// notBeingDeleted refuses to restore a snapshot whose deletion is decided.
func notBeingDeleted(pending []*nodev1.Owed, digest, call string) error {
	for _, o := range pending {
		if o.GetSnapshot().GetDigest() == digest {
			return fmt.Errorf("%s: snapshot %s is being deleted: %w", call, digest, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
