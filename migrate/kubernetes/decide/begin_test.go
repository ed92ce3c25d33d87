package decide_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// heldSnapshot is a Ready VMSnapshot of VM src, whose record was removed.
func heldSnapshot() *decide.Snapshot {
	o := snapshotWorld()
	o.Object.Spec.Source.VMRef = &v1alpha1.VMRef{Name: "src"}
	o.Object.Status.Conditions = []metav1.Condition{{Type: decide.CondReady, Status: metav1.ConditionTrue}}
	o.VM, o.Pod, o.Record = nil, nil, nil
	o.Held = &nodev1.Owed{Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.src"}, Uid: "u0", Hold: &nodev1.Hold{},
		Snapshot: &nodev1.SnapshotRef{Digest: digest, Operation: "s1", Repository: "r/u0", Generation: 7}}
	return &o
}

func source(o *decide.VM) {
	o.From.Record = &nodev1.Record{Vm: o.From.Held.GetVm(), Uid: "u0", Snapshots: []*nodev1.SnapshotRef{
		o.From.Held.GetSnapshot()}}
	o.From.Held = nil
}

// pending is the record of a VM that has not begun.
func pendingRecord(o *decide.VM) {
	o.Record = record(nil, 0, nil)
	o.Record.RestoreFrom = &nodev1.RestoreFrom{Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.src"}, Operation: "s1",
		Id: "i-u1"}
}

func takenBy(uid string, there bool) func(*decide.VM) {
	return func(o *decide.VM) {
		o.From.Held.Hold = &nodev1.Hold{Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Uid: uid, Id: "i-" + uid}
		o.From.TakerThere = there
	}
}

// A VM with restoreFrom begins from what is held, once, or waits and says why. It never boots.
func TestBeginsFromASnapshot(t *testing.T) {
	waits := func(why decide.Reason) want { return want{do: decide.None, waits: why} }
	fails := func(why decide.Reason) want { return want{do: decide.None, waits: why, refused: true} }
	type do = func(*decide.VM)
	for name, test := range map[string]struct {
		change []do
		want   want
	}{
		"held":               {nil, want{do: decide.EnsureRecord}},
		"held, and to sleep": {[]do{mode(v1alpha1.ModeHibernated)}, want{do: decide.EnsureRecord}},
		"stopped":            {[]do{mode(v1alpha1.ModeStopped)}, want{do: decide.None}},
		"stopped, with its record": {[]do{pendingRecord, mode(v1alpha1.ModeStopped)},
			want{do: decide.None}},
		"no such snapshot":    {[]do{noSnapshot}, waits(decide.ReasonSnapshotNotFound)},
		"its source is there": {[]do{source}, fails(decide.ReasonForkUnsupported)},
		"not Ready":           {[]do{notReady}, waits(decide.ReasonSnapshotNotReady)},
		"failed":              {[]do{failedSnapshot}, fails(decide.ReasonSnapshotFailed)},
		"is being deleted":    {[]do{goingSnapshot}, fails(decide.ReasonSnapshotGone)},
		"nobody has it":       {[]do{func(o *decide.VM) { o.From.Held = nil }}, fails(decide.ReasonSnapshotGone)},
		"another VM has it":   {[]do{takenBy("u9", true)}, fails(decide.ReasonSnapshotTaken)},
		"a VM that is gone":   {[]do{takenBy("u9", false)}, want{do: decide.EnsureRecord}},
		"not known": {[]do{func(o *decide.VM) { o.Unread = errors.New("x") }},
			waits(decide.ReasonRecordsUnavailable)},
		"with its record":     {[]do{pendingRecord}, want{do: decide.TakeSnapshot}},
		"marked":              {[]do{pendingRecord, takenBy("u1", true)}, want{do: decide.BeginVM}},
		"marked and deleted":  {[]do{pendingRecord, takenBy("u1", true), goingSnapshot}, want{do: decide.BeginVM}},
		"lost the race":       {[]do{pendingRecord, takenBy("u9", true)}, fails(decide.ReasonSnapshotTaken)},
		"another VM's mark":   {[]do{pendingRecord, takenBy("u9", false)}, want{do: decide.TakeSnapshot}},
		"its record, no more": {[]do{pendingRecord, noSnapshot}, waits(decide.ReasonSnapshotNotFound)},
		"another snapshot now": {[]do{pendingRecord, func(o *decide.VM) { o.From.Object.UID = "s2" }},
			fails(decide.ReasonInvalid)},
		"no intent in its record": {[]do{func(o *decide.VM) { o.Record = record(nil, 0, nil) }},
			fails(decide.ReasonInvalid)},
		"it is deleted": {[]do{pendingRecord, deleted}, want{do: decide.RemoveRecord}},
		"it has begun":  {[]do{pendingRecord, begun}, want{do: decide.MakeOperation, detail: "Wake "}},
	} {
		t.Run(name, func(t *testing.T) {
			o := world()
			o.Record, o.Pods, o.From = nil, nil, heldSnapshot()
			o.Object.Spec.RestoreFrom = &v1alpha1.LocalRef{Name: "snap"}
			for _, change := range test.change {
				change(&o)
			}
			next := decide.NextVM(o)
			test.want.check(t, next)
			if next.Do == decide.EnsureRecord && (next.From.GetOperation() != "s1" || next.From.GetVm().GetId() != "ns.src") {
				t.Errorf("a record that begins from %v", next.From)
			}
			if next.Waits != "" && next.Waits != decide.ReasonRecordsUnavailable && next.Waits != decide.ReasonInvalid &&
				next.After == 0 {
				t.Errorf("%s, and it is not looked at again", next.Waits)
			}
			if next.Do == decide.TakeSnapshot && next.After == 0 {
				t.Error("it is marked, and not looked at again")
			}
			if next.Refused && !strings.Contains(next.Message, "restoreFrom") {
				t.Errorf("refused by %q", next.Message)
			}
		})
	}
}

func begun(o *decide.VM) {
	o.Record.RestoreFrom.Begun, o.Record.Owner, o.Record.Generation = true, asleep, 1
}

func goingSnapshot(o *decide.VM) { snapDeleted(o.From) }

func noSnapshot(o *decide.VM) { o.From = nil }

func notReady(o *decide.VM) { o.From.Object.Status.Conditions[0].Status = metav1.ConditionFalse }

func failedSnapshot(o *decide.VM) { o.From.Object.Status.Conditions[0].Type = decide.CondFailed }

// A VMSnapshot stays Ready when its VM is removed. Deleted, it waits for the VM that has begun from it, and then ends
// what is held.
func TestHeldSnapshot(t *testing.T) {
	o := *heldSnapshot()
	hasOrder(decide.CondReady)(&o)
	s := decide.SnapshotStatus(o, decide.NextSnapshot(o))
	if len(s.Conditions) == 0 || s.Conditions[0].Status != metav1.ConditionTrue || s.Digest != digest {
		t.Errorf("of a removed VM: %+v", s)
	}
	snapDeleted(&o)
	gone(&o.Labelled[0])
	gone(o.Named)
	taker := record(asleep, 1, nil)
	taker.Snapshots = []*nodev1.SnapshotRef{proto.CloneOf(o.Held.GetSnapshot())}
	taker.Snapshots[0].Origin = &nodev1.Origin{Uid: "u0"}
	begins := record(nil, 0, nil)
	begins.RestoreFrom = &nodev1.RestoreFrom{Operation: "s1"}
	moved := proto.CloneOf(taker)
	moved.Owner, moved.Spent = atA, []string{digest, "sha256:later"}
	o.TakerThere = true
	want{do: decide.None, waits: decide.ReasonInUse}.check(t, decide.NextSnapshot(o)) // its record may be put back
	o.TakerThere = false
	for name, test := range map[string]struct {
		taker *nodev1.Record
		want  want
	}{
		"nobody has begun":       {nil, want{do: decide.ReleaseSnapshot}},
		"a VM sleeps in it":      {taker, want{do: decide.None, waits: decide.ReasonInUse}},
		"a VM is about to begin": {begins, want{do: decide.None, waits: decide.ReasonInUse}},
		"a VM has gone on":       {moved, want{do: decide.TrimSnapshot}},
		"a VM lists it no more":  {record(asleep, 3, nil), want{do: decide.ReleaseSnapshot}},
	} {
		o.Taker = test.taker
		next := decide.NextSnapshot(o)
		test.want.check(t, next)
		if next.Do == decide.TrimSnapshot && next.Record != moved {
			t.Errorf("%s: of record %v", name, next.Record)
		}
	}
	o.Taker, o.Object.Spec.DeletionPolicy = nil, v1alpha1.DeletionRetain
	if next := decide.NextSnapshot(o); next.Do != decide.ReleaseSnapshot || !next.Keep {
		t.Errorf("Retain: %+v", next)
	}
}

// A VM that has begun from a snapshot whose images are not known wakes with those of its template: a wrong one can be
// mended there.
func TestBegunWithoutImages(t *testing.T) {
	o := waking("", true)
	o.Images = nil
	want{do: decide.None, waits: decide.ReasonInvalid, refused: true}.check(t, decide.Arrival(o))
	o.Record.RestoreFrom = &nodev1.RestoreFrom{Operation: "s1", Begun: true}
	next := decide.Arrival(o)
	if next.Do != decide.MakePod || next.Pod.Spec.Containers[0].Image != "m:1" {
		t.Errorf("decided %s: %s", next.Do, next.Message)
	}
}

// What is held and has no VMSnapshot stays as long as a VM may need it.
func TestOrphanedHold(t *testing.T) {
	begins, has, spare := record(nil, 0, nil), record(asleep, 1, nil), record(asleep, 2, nil)
	begins.RestoreFrom = &nodev1.RestoreFrom{Operation: "s1"}
	has.Snapshots = []*nodev1.SnapshotRef{{Digest: digest, Origin: &nodev1.Origin{Uid: "u0"}}}
	for name, test := range map[string]struct {
		change func(*decide.Snapshot)
		want   bool
	}{
		"no VM has it":          {func(*decide.Snapshot) {}, true},
		"it is not held":        {func(o *decide.Snapshot) { o.Held = nil }, false},
		"a VM begins":           {func(o *decide.Snapshot) { o.Taker, o.TakerThere = begins, true }, false},
		"a VM lists it":         {func(o *decide.Snapshot) { o.Taker, o.TakerThere = has, true }, false},
		"a VM needs it no more": {func(o *decide.Snapshot) { o.Taker, o.TakerThere = spare, true }, true},
		"a VM without a record": {func(o *decide.Snapshot) { o.TakerThere = true }, false},
	} {
		o := *heldSnapshot()
		test.change(&o)
		if got := o.Orphaned(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
