package decide_test

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// saysReady has the status say that the snapshot is Ready, as it was read.
func saysReady(o *decide.Snapshot) {
	o.Object.Status = decide.SnapshotStatus(*o, decide.Action{Do: decide.None})
}

// The workload is told once the status that says Ready was written, and never of a snapshot from which its VM came.
// Ready stays whatever becomes of that.
func TestTellAfterReady(t *testing.T) {
	type do = func(*decide.Snapshot)
	said := func(status metav1.ConditionStatus, why decide.Reason) do {
		return func(o *decide.Snapshot) {
			meta.SetStatusCondition(&o.Object.Status.Conditions, metav1.Condition{Type: decide.CondTold, Status: status,
				Reason: string(why)})
		}
	}
	spent := func(digest string) do {
		return func(o *decide.Snapshot) { o.Record.Spent = []string{"sha256:x", digest} }
	}
	for name, test := range map[string]struct {
		change []do
		want   decide.Do
		untold decide.Reason // by the status afterwards; empty: it says nothing, or what it said
	}{
		"Ready": {nil, decide.TellWorkload, ""},
		"its order is gone": {[]do{func(o *decide.Snapshot) { o.Named, o.Labelled = nil, nil }},
			decide.TellWorkload, ""},
		"the status is not written": {[]do{func(o *decide.Snapshot) { o.Object.Status.Conditions = nil }},
			decide.None, ""},
		"no engine": {[]do{func(o *decide.Snapshot) { o.Engine = false }}, decide.None, ""},
		"not known": {[]do{func(o *decide.Snapshot) { o.Unread = errors.New("x") }}, decide.None, ""},
		"told":      {[]do{said(metav1.ConditionTrue, decide.ReasonTold)}, decide.None, ""},
		"it failed": {[]do{said(metav1.ConditionFalse, decide.ReasonTellFailed)},
			decide.TellWorkload, ""},
		"it slept": {[]do{said(metav1.ConditionFalse, decide.ReasonVMSleeps)}, decide.TellWorkload, ""},
		"it moved": {[]do{func(o *decide.Snapshot) { o.Record.Owner = &nodev1.Owner{Node: "b"} }},
			decide.TellWorkload, ""},
		"it slept and woke": {[]do{spent("sha256:later")}, decide.TellWorkload, ""},
		"it sleeps": {[]do{func(o *decide.Snapshot) { o.Record.Owner = &nodev1.Owner{Digest: "sha256:later"} }},
			decide.None,
			decide.ReasonVMSleeps},
		"restored from it": {[]do{spent(digest)}, decide.None, decide.ReasonVMRestored},
		"restored, and it sleeps": {[]do{spent(digest), func(o *decide.Snapshot) {
			o.Record.Owner = &nodev1.Owner{Digest: "sha256:later"}
		}}, decide.None, decide.ReasonVMRestored},
		"that is final": {[]do{said(metav1.ConditionFalse, decide.ReasonVMRestored)},
			decide.None, decide.ReasonVMRestored},
		"an operation is open": {[]do{func(o *decide.Snapshot) {
			o.Record.Operation = &nodev1.Operation{Id: "move", Kind: nodev1.Kind_KIND_MIGRATE}
		}}, decide.None, ""},
		"it ended": {[]do{func(o *decide.Snapshot) { o.Record, o.Named, o.Labelled = nil, nil, nil }},
			decide.MakeContent, ""},
		"is deleted": {[]do{snapDeleted}, decide.DeleteContent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := snapshotWorld()
			o.Engine = true
			for _, change := range append([]do{hasOrder(decide.CondReady), lists, saysReady}, test.change...) {
				change(&o)
			}
			if name == "it ended" { // what runs under the name is another VM
				o.Pod = nil
				test.want = decide.None
			}
			next := decide.NextSnapshot(o)
			if next.Do != test.want || next.Do == decide.TellWorkload && next.Digest != digest {
				t.Errorf("decided %+v", next)
			}
			now := decide.SnapshotStatus(o, next)
			if test.untold != "" {
				c := meta.FindStatusCondition(now.Conditions, decide.CondTold)
				if c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(test.untold) {
					t.Errorf("status %+v", c)
				}
			}
			if o.Record != nil && !meta.IsStatusConditionTrue(now.Conditions, decide.CondReady) {
				t.Errorf("not Ready any more: %+v", now.Conditions)
			}
		})
	}
}

// A text that differs with each try is no change: a guest or a node could have the status written without end.
func TestToldStatusFailsAgain(t *testing.T) {
	o := snapshotWorld()
	hasOrder(decide.CondReady)(&o)
	lists(&o)
	saysReady(&o)
	failed := func(text string) string {
		o.Object.Status = decide.ToldStatus(o, errors.New(text))
		return meta.FindStatusCondition(o.Object.Status.Conditions, decide.CondTold).Message
	}
	if first, second := failed("port 1"), failed("port 2"); first != "port 1" || second != first {
		t.Errorf("it says %q, then %q", first, second)
	}
	o.Object.Status = decide.ToldStatus(o, nil)
	if !meta.IsStatusConditionTrue(o.Object.Status.Conditions, decide.CondTold) {
		t.Errorf("told: %+v", o.Object.Status.Conditions)
	}
}

// What became of a try is said of the workload alone.
func TestToldStatus(t *testing.T) {
	o := snapshotWorld()
	hasOrder(decide.CondReady)(&o)
	lists(&o)
	saysReady(&o)
	was := o.Object.Status
	for _, err := range []error{errors.New("no guest"), nil} {
		s := decide.ToldStatus(o, err)
		c := meta.FindStatusCondition(s.Conditions, decide.CondTold)
		if c == nil || (c.Status == metav1.ConditionTrue) != (err == nil) || err != nil && c.Message != err.Error() {
			t.Errorf("%v: %+v", err, c)
		}
		if meta.RemoveStatusCondition(&s.Conditions, decide.CondTold); len(s.Conditions) != len(was.Conditions) ||
			!meta.IsStatusConditionTrue(s.Conditions, decide.CondReady) || s.Digest != was.Digest {
			t.Errorf("%v: status %+v", err, s)
		}
	}
}
