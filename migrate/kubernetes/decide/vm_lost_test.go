package decide_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// drivenBy is a VM at node a, or in a snapshot, with an operation whose driver node a is. Somebody vouches that a runs
// nothing any more.
func drivenBy(owner *nodev1.Owner, kind nodev1.Kind, phase nodev1.Phase) func(*decide.VM) {
	return func(o *decide.VM) {
		op := operation(kind, phase)
		if kind == nodev1.Kind_KIND_WAKE {
			op.Source, op.Destination = "", "a"
		}
		if phase == nodev1.Phase_PHASE_COMMITTED || phase == nodev1.Phase_PHASE_CLEANING {
			op.CommittedUnixNano = now.Add(-time.Second).UnixNano()
		}
		o.Record, o.Pods, o.Fenced = record(owner, 3, op), nil, true
	}
}

func restores(o *decide.VM) { o.Object.Spec.OnNodeLoss = v1alpha1.NodeLossRestore }

func notFenced(o *decide.VM) { o.Fenced = false }

// longAgo is an operation that was committed before its source had the time to say that it is done.
func longAgo(o *decide.VM) { o.Record.Operation.CommittedUnixNano = now.Add(-time.Hour).UnixNano() }

// openOrder is an order of a person that the engine has not been told of.
func openOrder(kind v1alpha1.OperationKind) func(*decide.VM) {
	return func(o *decide.VM) {
		op := v1alpha1.VMOperation{}
		op.Name, op.UID, op.Spec.Kind = "order", "o1", kind
		o.Orders = append(o.Orders, op)
	}
}

// atFenced is the pod at node a that an operation was to bring the VM into.
func atFenced(o *decide.VM) {
	o.Pods = []corev1.Pod{pod(o.Object, "vm-g4-a1", 4, "a", corev1.PodPending, of("op1", 1))}
}

// A VM whose node died with an operation of it goes on elsewhere once somebody vouches for that node: by its policy if
// it was awake there, and by itself if it slept.
func TestDriverOfAnOperationIsLost(t *testing.T) {
	const (
		pending, preparing = nodev1.Phase_PHASE_PENDING, nodev1.Phase_PHASE_PREPARING
		sending, switching = nodev1.Phase_PHASE_TRANSFERRING, nodev1.Phase_PHASE_SWITCHING
		did, cleaning      = nodev1.Phase_PHASE_COMMITTED, nodev1.Phase_PHASE_CLEANING
		aborting           = nodev1.Phase_PHASE_ABORTING
		hibernate          = nodev1.Kind_KIND_HIBERNATE
		checkpoint         = nodev1.Kind_KIND_CHECKPOINT
		migrate, wake      = nodev1.Kind_KIND_MIGRATE, nodev1.Kind_KIND_WAKE
	)
	recovers, reclaims := want{do: decide.OrderRecover, detail: "a"}, want{do: decide.OrderReclaim, detail: "a",
		waits: decide.ReasonNodeLost}
	wakes := want{do: decide.MakeOperation, detail: "Wake "}
	waits := want{do: decide.None, waits: decide.ReasonOperation}
	strands := want{do: decide.None, waits: decide.ReasonNodeLost}
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"a: it hibernates":                 {both(drivenBy(atA, hibernate, sending), restores), recovers},
		"a: it hibernates, and was to":     {both(drivenBy(atA, hibernate, aborting), restores), recovers},
		"a: a checkpoint":                  {both(drivenBy(atA, checkpoint, switching), restores), recovers},
		"a: a checkpoint that has ended":   {both(drivenBy(atA, checkpoint, did), restores), recovers},
		"a: it is to wait":                 {drivenBy(atA, hibernate, sending), strands},
		"a: nobody vouches":                {both(drivenBy(atA, hibernate, sending), restores, notFenced), waits},
		"a: no engine":                     {both(drivenBy(atA, hibernate, sending), restores, noEngine), engineMissing},
		"b: it moves":                      {both(drivenBy(atA, migrate, preparing), restores), recovers},
		"b: it waits for its turn to move": {both(drivenBy(atA, migrate, pending), restores), recovers},
		"b: the move is called off":        {both(drivenBy(atA, migrate, aborting), restores), recovers},
		"b: it is to wait":                 {drivenBy(atA, migrate, aborting), strands},
		"b: nobody vouches":                {both(drivenBy(atA, migrate, aborting), restores, notFenced), waits},
		"c: an order waits": {both(lostAtA, restores, openOrder(v1alpha1.KindHibernate)),
			recovers},
		"c: an order waits, and it is to wait": {both(lostAtA, openOrder(v1alpha1.KindHibernate)), strands},
		"c: nobody vouches": {both(lostAtA, restores, openOrder(v1alpha1.KindHibernate), notFenced),
			waits},
		"d: it sleeps":            {drivenBy(asleep, hibernate, cleaning), wakes},
		"d: it sleeps, committed": {drivenBy(asleep, hibernate, did), wakes},
		"d: it is to sleep": {both(drivenBy(asleep, hibernate, cleaning), mode(v1alpha1.ModeHibernated)),
			waits},
		"d: nobody vouches":                 {both(drivenBy(asleep, hibernate, cleaning), notFenced), waits},
		"d: its node is gone for long":      {both(drivenBy(asleep, hibernate, cleaning), notFenced, longAgo), wakes},
		"d: it has slept, by an open order": {both(drivenBy(asleep, hibernate, cleaning), byOrder), wakes},
		"d: its wake is ordered": {both(drivenBy(asleep, hibernate, cleaning), openOrder(v1alpha1.KindWake)),
			waits},
		"e: it wakes": {drivenBy(asleep, wake, sending), recovers},
		"e: its pod stays": {both(drivenBy(asleep, wake, sending), atFenced),
			want{do: decide.DeletePod, detail: "vm-g4-a1"}},
		"e: it is to sleep": {both(drivenBy(asleep, wake, sending), mode(v1alpha1.ModeHibernated)),
			waits},
		"e: nobody vouches":                              {both(drivenBy(asleep, wake, sending), atFenced, notFenced), waits},
		"e: it came there":                               {both(drivenBy(atA, wake, did), restores), recovers},
		"e: it came there, and is to wait":               {drivenBy(atA, wake, did), strands},
		"its source has it as it was":                    {both(drivenBy(atA, migrate, did), restores, live), reclaims},
		"its source has it as it was, and it is to wait": {both(drivenBy(atA, migrate, did), live), strands},
		"its source has it as it was, and is lost, too": {both(drivenBy(atA, migrate, did), restores, live, noSource),
			recovers},
		"its source has it as it was, without an engine": {both(drivenBy(atA, migrate, did), restores, live, noEngine),
			engineMissing},
		"its wake elsewhere has failed":              {both(lostAtA, restores, wakesFailed(3, time.Second)), strands},
		"its wake elsewhere has failed, a while ago": {both(lostAtA, restores, wakesFailed(3, 10*time.Minute)), recovers},
		"a wake before has failed":                   {both(lostAtA, restores, wakesFailed(2, time.Second)), recovers},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
}

// live has the operation be a live move from b.
func live(o *decide.VM) {
	o.Record.Operation.Source, o.Record.Operation.Destination = "b", "a"
	o.Record.Operation.Digest = "stream:1"
}

func noSource(o *decide.VM) { o.NoSource = true }

// wakesFailed are wakes of an owner of the VM, which failed, the last one so long ago.
func wakesFailed(generation uint64, ago time.Duration) func(*decide.VM) {
	return func(o *decide.VM) {
		for n := range 2 {
			o.Closed = append(o.Closed, &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Generation: generation,
				Phase: nodev1.Phase_PHASE_FAILED, Reason: "no frame 7",
				ClosedUnixNano: now.Add(-ago - time.Duration(1-n)*time.Minute).UnixNano()})
		}
	}
}

// A VM whose wake from a lost node fails is not woken in a loop. It says why, and is looked at again.
func TestRecoverBacksOff(t *testing.T) {
	o := world(lostAtA, restores, wakesFailed(3, time.Second))
	next := decide.NextVM(o)
	if next.After <= 0 || next.After > time.Minute || !strings.Contains(next.Message, "no frame 7") {
		t.Errorf("decided %+v", next)
	}
	o = world(lostAtA, restores, wakesFailed(3, -time.Hour)) // the clock was set back since
	want{do: decide.OrderRecover, detail: "a"}.check(t, decide.NextVM(o))
}

// A VM whose move has lost its destination says where it is held, and what brings it back.
func TestHeldAtTheSourceIsTold(t *testing.T) {
	const did, migrate = nodev1.Phase_PHASE_COMMITTED, nodev1.Kind_KIND_MIGRATE
	for says, o := range map[string]decide.VM{
		"Node b holds it as it was at the switch-over. To have it go on there: set spec.onNodeLoss": world(
			drivenBy(atA, migrate, did), live),
		"it goes on at node b, as it was at the switch-over": world(drivenBy(atA, migrate, did), live, restores),
	} {
		c := meta.FindStatusCondition(decide.VMStatus(o, decide.NextVM(o)).Conditions, decide.CondReady)
		if c == nil || c.Status != "Unknown" || c.Reason != string(decide.ReasonNodeLost) ||
			!strings.Contains(c.Message, says) {
			t.Errorf("the condition is %+v, want %q", c, says)
		}
	}
}

func lostAtA(o *decide.VM) { o.Pods, o.Fenced = nil, true }

func noEngine(o *decide.VM) { o.Engine = false }

var engineMissing = want{do: decide.None, waits: decide.ReasonEngineMissing, refused: true}

// byOrder has the operation of the record be one of an order that is not closed yet.
func byOrder(o *decide.VM) {
	op := v1alpha1.VMOperation{}
	op.Name, op.UID, op.Spec.Kind = "to-sleep", "op1", v1alpha1.KindHibernate
	op.Status.Phase, op.Status.ID = v1alpha1.MigrationRunning, "op1"
	o.Orders = append(o.Orders, op)
}

// A pod at a lost node that holds the name of the next one is ended at once: no kubelet says that it has ended.
func TestPodAtAFencedNodeEndsAtOnce(t *testing.T) {
	o := world(drivenBy(asleep, nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING), atFenced)
	ending(&o.Pods[0])
	if next := decide.NextVM(o); next.Do != decide.DeletePod || !next.AtOnce {
		t.Errorf("decided %+v", next)
	}
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(world(
		drivenBy(asleep, nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING), atFenced, notFenced)))
}

// A VM that waits for its lost node says so, and what brings it back.
func TestLostNodeIsTold(t *testing.T) {
	o := world(drivenBy(atA, nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_TRANSFERRING))
	s := decide.VMStatus(o, decide.NextVM(o))
	for _, c := range s.Conditions {
		if c.Type == decide.CondReady && c.Status == "Unknown" && c.Reason == string(decide.ReasonNodeLost) &&
			strings.Contains(c.Message, "spec.onNodeLoss") {
			return
		}
	}
	t.Errorf("the conditions are %+v", s.Conditions)
}

// What the VM's own wish has ordered, and no node has taken, is called off when the wish is another one by now.
func TestWishThatHasChanged(t *testing.T) {
	order := func(kind v1alpha1.OperationKind, node string, change ...func(*v1alpha1.VMOperation)) func(*decide.VM) {
		return func(o *decide.VM) {
			openOrder(kind)(o)
			op := &o.Orders[0]
			op.Labels, op.Spec.NodeName = map[string]string{decide.LabelFor: "u1"}, node
			for _, c := range change {
				c(op)
			}
		}
	}
	calledOff := want{do: decide.AbortOperation, detail: "order"}
	waits := want{do: decide.None, waits: decide.ReasonOperation}
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"it was to sleep": {order(v1alpha1.KindHibernate, ""), calledOff},
		"it is to sleep": {both(order(v1alpha1.KindHibernate, ""), mode(v1alpha1.ModeHibernated)),
			waits},
		"it was to move": {order(v1alpha1.KindMigrate, "b"), calledOff},
		"it was to wake": {both(owned(asleep), order(v1alpha1.KindWake, ""), mode(v1alpha1.ModeHibernated)),
			calledOff},
		"it is to wake": {both(owned(asleep), order(v1alpha1.KindWake, "")), waits},
		"it is at work, as far as is known": {order(v1alpha1.KindHibernate, "", func(op *v1alpha1.VMOperation) {
			op.Status.ID = "o1"
		}), waits},
		"it is called off": {order(v1alpha1.KindHibernate, "", func(op *v1alpha1.VMOperation) {
			op.Spec.Abort = true
		}), waits},
		"a person's": {order(v1alpha1.KindHibernate, "", func(op *v1alpha1.VMOperation) { op.Labels = nil }), waits},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
}

// A VM that is deleted while it sleeps, and whose node has not said for long that it ended there, is given up.
func TestDeletedWhileTheCleanUpHangs(t *testing.T) {
	slept := both(drivenBy(asleep, nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING), notFenced)
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(world(slept, deleted)))
	next := decide.NextVM(world(slept, longAgo, deleted))
	if (want{do: decide.OrderGiveUp, detail: "a"}).check(t, next); next.After <= 0 {
		t.Error("its node may be up, and is not looked at again")
	}
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(world(deleted, notFenced,
		drivenBy(atA, nodev1.Kind_KIND_CHECKPOINT, nodev1.Phase_PHASE_COMMITTED), longAgo, notFenced)))
}
