package decide

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// CondTold of a VMSnapshot says whether its workload was told that it is Ready. It never changes what Ready says.
const CondTold = "WorkloadTold"

// TellAgain is how long after a word to a workload that failed the next try is. A guest that hangs has a try for as
// long as it hangs.
const TellAgain = 30 * time.Second

// tell decides of a snapshot that is listed whether the VM that went on is told now. The status says Ready first. A VM
// that was restored from the snapshot is never told of it: by that it can know what it is.
func (o Snapshot) tell() Action {
	said, rec := o.Object.Status.Conditions, o.Record
	told := meta.FindStatusCondition(said, CondTold)
	over := told != nil && (told.Status == metav1.ConditionTrue || told.Reason == string(ReasonVMRestored))
	digest := o.listed().GetDigest()
	switch {
	case o.native() == nil: // its VM has ended: no workload is left to tell
		return Action{Do: None}
	case over || !o.Engine || !meta.IsStatusConditionTrue(said, CondReady):
		return Action{Do: None}
	case slices.Contains(rec.GetSpent(), digest):
		return Action{Do: None, Untold: ReasonVMRestored, Message: "its VM was restored from it since"}
	case rec.GetOperation() != nil: // it ends, and the record tells of that
		return Action{Do: None}
	case rec.GetOwner().GetNode() == "":
		return Action{Do: None, Untold: ReasonVMSleeps, Message: "the workload is told when it has woken"}
	}
	return Action{Do: TellWorkload, Digest: digest}
}

// toldStatus says why the workload was not told yet.
func toldStatus(s *v1alpha1.VMSnapshotStatus, next Action) {
	if next.Untold != "" {
		setCondition(&s.Conditions, s.ObservedGeneration, CondTold, metav1.ConditionFalse, next.Untold, next.Message)
	}
}

// ToldStatus is what the status says once the workload was told; err is why it was not. A guest or a node can have
// each try fail by another text, so the first one stays.
func ToldStatus(o Snapshot, err error) v1alpha1.VMSnapshotStatus {
	s := *o.Object.Status.DeepCopy()
	told := meta.FindStatusCondition(s.Conditions, CondTold)
	switch {
	case err == nil:
		setCondition(&s.Conditions, s.ObservedGeneration, CondTold, metav1.ConditionTrue, ReasonTold, "")
	case told == nil || told.Status != metav1.ConditionFalse || told.Reason != string(ReasonTellFailed):
		setCondition(&s.Conditions, s.ObservedGeneration, CondTold, metav1.ConditionFalse, ReasonTellFailed, err.Error())
	}
	return s
}
