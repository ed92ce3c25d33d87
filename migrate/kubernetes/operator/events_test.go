package operator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// People look for these events: a snapshot, and a VM that goes on with its memory, have one for each end.
func TestEventsByName(t *testing.T) {
	pod := func(operation string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{pods.LabelOperation: operation}}}
	}
	ordered := &v1alpha1.VMSnapshot{}
	ordered.Status.BoundSnapshotContentName = "vmsnap-u"
	for got, want := range map[string]string{
		EventOf(decide.Action{Do: decide.MakePod, Pod: pod("op")}):                         "RestoreRequested",
		EventOf(decide.Action{Do: decide.MakePod, Pod: pod("")}):                           "MakePod",
		EventOf(decide.Action{Do: decide.SetGate, On: true, Restored: decide.ReasonWoken}): "RestoreSucceeded",
		EventOf(decide.Action{Do: decide.SetGate, On: true}):                               "SetGate",
		EventOf(decide.Action{Do: decide.StopVM, Waits: decide.ReasonTaskFailed}):          "TaskFailed",
		eventOfFailure(v1alpha1.KindWake):                                                  "RestoreFailed",
		eventOfFailure(v1alpha1.KindHibernate):                                             "HibernateFailed",
		eventOfRefusal(&v1alpha1.VMSnapshot{}):                                             "SnapshotCreateFailed",
		eventOfRefusal(ordered):                                                            "SnapshotFailed",
		string(decide.ReasonAmbiguous):                                                     "SnapshotLookupAmbiguous",
		eventOrderFailed:                                                                   "WorkOrderCreateFailed",
		eventCreated:                                                                       "SnapshotCreated",
	} {
		if got != want {
			t.Errorf("event %s, want %s", got, want)
		}
	}
}
