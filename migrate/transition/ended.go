package transition

import (
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/api/record"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Ended answers what is known of the end of the VM; nil while the VM has not ended: somebody
// owns it, it was lost, or something is under way.
func Ended(rec *nodev1.Record) *nodev1.Ended {
	if !free(rec) || record.IsLost(rec) || rec.GetOperation() != nil || rec.GetDeletion() != nil {
		return nil
	}
	if e := rec.GetEnded(); e.GetGeneration() == rec.GetGeneration() && e != nil {
		return e
	}
	return &nodev1.Ended{Generation: rec.GetGeneration()} // before anybody wrote it down
}

// LeftByEnded lists what a VM that has ended has left of its sleeps: the snapshots that a wake has used up. A
// checkpoint is none of them, by whatever order it was made, and no pinned one is.
func LeftByEnded(rec *nodev1.Record) (refs []*nodev1.SnapshotRef) {
	if Ended(rec) == nil {
		return nil
	}
	for _, ref := range rec.GetSnapshots() {
		if !ref.GetCheckpoint() && !ref.GetPinned() && !ref.GetGuarded() && slices.Contains(rec.GetSpent(), ref.GetDigest()) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// noteEnded answers nil where the spent snapshot of a request may be trimmed. Else it notes when
// the VM was found to have ended, or refuses.
func noteEnded(s State, req *nodev1.TrimRequest, now time.Time) (*Change, error) {
	rec, digest := s.Record, req.GetSpent()
	refuse := func(why string, args ...any) (*Change, error) {
		return nil, fmt.Errorf("trim spent snapshot %s of VM %s: %s: %w", digest, name(rec.GetVm()),
			fmt.Sprintf(why, args...), errdefs.ErrFailedPrecondition)
	}
	if !slices.ContainsFunc(LeftByEnded(rec), func(ref *nodev1.SnapshotRef) bool { return ref.GetDigest() == digest }) {
		return refuse("it is none that a VM which has ended has left")
	}
	ended, bound := Ended(rec), time.Duration(req.GetEndedMs())*time.Millisecond
	if bound <= 0 {
		return refuse("for how long the VM has to have ended is not said")
	}
	if ended.GetSinceUnixNano() == 0 {
		rec = edit(s)
		rec.Ended = proto.CloneOf(ended)
		rec.Ended.SinceUnixNano = now.UnixNano()
		return &Change{Record: rec}, nil
	}
	if age := now.Sub(time.Unix(0, ended.GetSinceUnixNano())); age < bound {
		return refuse("the VM has ended %v ago, and it is kept for %v", age.Round(time.Second), bound)
	}
	return nil, nil
}
