package decide_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

var (
	now    = time.Date(2026, 11, 29, 1, 0, 0, 0, time.UTC)
	asleep = &nodev1.Owner{Digest: digest}
	atA    = &nodev1.Owner{Node: "a"}
)

// world is a VM that runs on node a, with its pod; a case changes it.
func world(change ...func(*decide.VM)) decide.VM {
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "u1", Generation: 4,
		Finalizers: []string{decide.FinalizerVM}}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.OperatingMode = v1alpha1.ModeRunning
	o := decide.VM{Object: vm, Record: record(atA, 3, nil), Engine: true, OnStop: true, Now: now,
		Images: map[string]string{"main": "m@" + digest}}
	o.Pods = []corev1.Pod{pod(vm, "vm-g3-a0", 3, "a", corev1.PodRunning, gated)}
	for _, c := range change {
		c(&o)
	}
	return o
}

func record(owner *nodev1.Owner, generation uint64, op *nodev1.Operation) *nodev1.Record {
	return &nodev1.Record{Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Uid: "u1", Owner: owner,
		Generation: generation, Operation: op}
}

func pod(vm *v1alpha1.VirtualMachine, name string, generation uint64, node string, phase corev1.PodPhase,
	change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		Labels: map[string]string{pods.LabelVM: "vm", pods.LabelRecordUID: "u1",
			pods.LabelGeneration: itoa(generation)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm,
			v1alpha1.GroupVersion.WithKind("VirtualMachine"))}},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func itoa(n uint64) string { return string(rune('0' + n)) }

func gated(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: pods.GateRunning,
		Status: corev1.ConditionTrue}, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		corev1.PodCondition{Type: pods.CondRestored, Status: corev1.ConditionTrue})
}

func of(id string, attempt uint64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels[pods.LabelOperation], p.Labels[pods.LabelAttempt] = id, itoa(attempt)
	}
}

func ending(p *corev1.Pod) { at := metav1.NewTime(now); p.DeletionTimestamp = &at }

func deleted(o *decide.VM) { at := metav1.NewTime(now); o.Object.DeletionTimestamp = &at }

func operation(kind nodev1.Kind, phase nodev1.Phase) *nodev1.Operation {
	return &nodev1.Operation{Id: "op1", Kind: kind, Phase: phase, Attempt: 1, Generation: 3, Source: "a", Digest: digest}
}

// moving is a VM under a move that its own nodeName has ordered, with these pods of it.
func moving(phase nodev1.Phase, destinations ...func(*corev1.Pod)) func(*decide.VM) {
	return func(o *decide.VM) {
		o.Record.Operation = operation(nodev1.Kind_KIND_MIGRATE, phase)
		o.Object.Spec.NodeName = "b"
		o.Orders = []v1alpha1.VMOperation{{ObjectMeta: metav1.ObjectMeta{Name: "order", UID: "op1",
			Labels: map[string]string{decide.LabelFor: "u1"}},
			Spec: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindMigrate, NodeName: "b"}}}
		if len(destinations) > 0 {
			o.Pods = append(o.Pods, pod(o.Object, "vm-g4-a1", 4, "", corev1.PodPending,
				append(destinations, of("op1", 1))...))
		}
	}
}

func mode(m v1alpha1.OperatingMode) func(*decide.VM) {
	return func(o *decide.VM) { o.Object.Spec.OperatingMode = m }
}

func owned(owner *nodev1.Owner, all ...corev1.Pod) func(*decide.VM) {
	return func(o *decide.VM) { o.Record, o.Pods = record(owner, 3, nil), all }
}

type want struct {
	do      decide.Do
	detail  string // of a pod its name, of an order kind and node
	waits   decide.Reason
	refused bool
}

func (w want) check(t *testing.T, next decide.Action) {
	t.Helper()
	detail := ""
	switch {
	case next.Pod != nil:
		detail = next.Pod.Name
	case next.Kind != "":
		detail = string(next.Kind) + " " + next.Node
	case next.VM != nil:
		detail = next.VM.Name + " " + string(next.VM.Spec.OperatingMode)
	default:
		detail = next.Operation + next.Node
	}
	if next.Do != w.do || detail != w.detail || next.Waits != w.waits || next.Refused != w.refused {
		t.Errorf("decided %s %q, waits %q refused %t (%s), want %+v", next.Do, detail, next.Waits, next.Refused,
			next.Message, w)
	}
}

func TestNextVM(t *testing.T) {
	plain := world().Object
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"it runs": {change: func(*decide.VM) {}, want: want{do: decide.None}},
		"it runs where it is wanted": {change: func(o *decide.VM) { o.Object.Spec.NodeName = "a" },
			want: want{do: decide.None}},
		"it is wanted elsewhere": {change: func(o *decide.VM) { o.Object.Spec.NodeName = "b" },
			want: want{do: decide.MakeOperation, detail: "Migrate b"}},
		"it is wanted on a node that is cordoned": {change: func(o *decide.VM) {
			o.Object.Spec.NodeName, o.Cordoned = "b", true
		}, want: want{do: decide.None, waits: decide.ReasonUnschedulable}},
		"new": {change: func(o *decide.VM) { o.Record, o.Pods = nil, nil }, want: want{do: decide.EnsureRecord}},
		"of a Sandbox's name": {change: func(o *decide.VM) {
			o.Record, o.Pods, o.Object.Name = nil, nil, "sbx-"+sandboxUID
		}, want: want{do: decide.None, waits: decide.ReasonInvalid, refused: true}},
		"of a Sandbox's name, deleted": {change: func(o *decide.VM) {
			o.Object.Name, o.Object.DeletionTimestamp = "sbx-"+sandboxUID, &metav1.Time{}
		}, want: want{do: decide.DropFinalizer}},
		"new and hibernated": {change: func(o *decide.VM) {
			o.Record, o.Pods, o.Object.Spec.OperatingMode = nil, nil, v1alpha1.ModeHibernated
		}, want: want{do: decide.None, waits: decide.ReasonNotHibernated}},
		"new and stopped": {change: func(o *decide.VM) {
			o.Record, o.Pods, o.Object.Spec.OperatingMode = nil, nil, v1alpha1.ModeStopped
		}, want: want{do: decide.None}},
		"boot": {change: owned(nil), want: want{do: decide.MakePod, detail: "vm-g4-a0"}},
		"its pod waits": {change: owned(nil, pod(plain, "vm-g4-a0", 4, "", corev1.PodPending)),
			want: want{do: decide.None, waits: decide.ReasonStarting}},
		"the old pod still ends": {change: owned(nil, pod(plain, "vm-g3-a0", 3, "a", corev1.PodRunning, ending)),
			want: want{do: decide.None, waits: decide.ReasonPodsAlive}},
		"hibernate": {change: mode(v1alpha1.ModeHibernated), want: want{do: decide.MakeOperation, detail: "Hibernate "}},
		"asleep":    {change: both(owned(asleep), mode(v1alpha1.ModeHibernated)), want: want{do: decide.None}},
		"asleep, its pod has ended": {change: both(owned(asleep, pod(plain, "vm-g2-a0", 2, "a", corev1.PodSucceeded)),
			mode(v1alpha1.ModeHibernated)), want: want{do: decide.DeletePod, detail: "vm-g2-a0"}},
		"wake": {change: owned(asleep), want: want{do: decide.MakeOperation, detail: "Wake "}},
		"asleep and stopped": {change: both(owned(asleep), mode(v1alpha1.ModeStopped)),
			want: want{do: decide.None, waits: decide.ReasonStateKept}},
		"stop":    {change: mode(v1alpha1.ModeStopped), want: want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"stopped": {change: both(owned(nil), mode(v1alpha1.ModeStopped)), want: want{do: decide.None}},
		"stopped before it ran": {change: both(owned(nil, pod(plain, "vm-g4-a0", 4, "", corev1.PodPending)),
			mode(v1alpha1.ModeStopped)), want: want{do: decide.DeletePod, detail: "vm-g4-a0"}},
		"its pod is gone, and its node has it": {change: func(o *decide.VM) { o.Pods = nil },
			want: want{do: decide.None, waits: decide.ReasonNodeUnreachable}},
		"its node is lost": {change: func(o *decide.VM) {
			o.Fenced, o.Object.Spec.OnNodeLoss = true, v1alpha1.NodeLossRestore
		}, want: want{do: decide.OrderRecover, detail: "a"}},
		"its node is lost, and it is to wait": {change: func(o *decide.VM) { o.Fenced = true },
			want: want{do: decide.None, waits: decide.ReasonNodeLost}},
		"its state is lost": {change: both(owned(nil), func(o *decide.VM) { o.Record.Lost = digest }),
			want: want{do: decide.None, waits: decide.ReasonLost, refused: true}},
		"it ended, and boots again": {change: owned(nil, pod(plain, "vm-g3-a0", 3, "a", corev1.PodFailed)),
			want: want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"it ended for good": {change: both(owned(nil, pod(plain, "vm-g3-a0", 3, "a", corev1.PodSucceeded)),
			func(o *decide.VM) { o.Object.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }),
			want: want{do: decide.None, waits: decide.ReasonEnded}},
		"it ended just now": {change: both(owned(nil, pod(plain, "vm-g3-a0", 3, "a", corev1.PodFailed)),
			func(o *decide.VM) { o.Pods[0].CreationTimestamp = metav1.NewTime(now) }),
			want: want{do: decide.None, waits: decide.ReasonBackOff}},
		"the gate of the pod that has it": {change: func(o *decide.VM) { o.Pods[0].Status.Conditions = nil },
			want: want{do: decide.SetGate, detail: "vm-g3-a0"}},
		"the order waits for its turn": {change: func(o *decide.VM) {
			o.Object.Spec.NodeName, o.Orders = "b", []v1alpha1.VMOperation{{}}
		}, want: want{do: decide.None, waits: decide.ReasonOperation}},
		"a failed order is not made again at once": {change: failedBefore, want: want{do: decide.None,
			waits: decide.ReasonBackOff}},
		"an eviction that lets it sleep": {change: func(o *decide.VM) {
			o.Object.Spec.Eviction.Strategy = v1alpha1.EvictionHibernate
			ending(&o.Pods[0])
			o.Pods[0].Status.Conditions = append(o.Pods[0].Status.Conditions, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
		}, want: want{do: decide.SetMode}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
}

func both(all ...func(*decide.VM)) func(*decide.VM) {
	return func(o *decide.VM) {
		for _, c := range all {
			c(o)
		}
	}
}

func failedBefore(o *decide.VM) {
	at := metav1.NewTime(now)
	o.Object.Spec.NodeName = "b"
	o.Orders = []v1alpha1.VMOperation{{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{decide.LabelFor: "u1"},
		Annotations: map[string]string{decide.AnnotationGeneration: "4"}}, Spec: v1alpha1.VMOperationSpec{
		Kind: v1alpha1.KindMigrate}, Status: v1alpha1.VMOperationStatus{Phase: v1alpha1.MigrationFailed,
		CompletionTime: &at}}}
}

// A move as its pods and its record show it, with every wish that may come meanwhile.
func TestNextVMUnderAMove(t *testing.T) {
	none := func(*corev1.Pod) {}
	atB := func(p *corev1.Pod) { p.Spec.NodeName = "b" }
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"its pod is made": {change: moving(nodev1.Phase_PHASE_PENDING),
			want: want{do: decide.MakePod, detail: "vm-g4-a1"}},
		"its pod comes": {change: moving(nodev1.Phase_PHASE_TRANSFERRING, atB),
			want: want{do: decide.None, waits: decide.ReasonOperation}},
		"it switches over": {change: moving(nodev1.Phase_PHASE_SWITCHING, atB),
			want: want{do: decide.None, waits: decide.ReasonOperation}},
		"the next attempt": {change: both(moving(nodev1.Phase_PHASE_PENDING, atB),
			func(o *decide.VM) { o.Record.Operation.Attempt = 2 }), want: want{do: decide.DeletePod, detail: "vm-g4-a1"}},
		"committed: the source's gate stays until the new pod is ready": {change: both(
			moving(nodev1.Phase_PHASE_CLEANING, atB), committed), want: want{do: decide.SetGate, detail: "vm-g4-a1"}},
		"committed and ready: the source is no more": {change: both(moving(nodev1.Phase_PHASE_CLEANING, atB, gated),
			committed), want: want{do: decide.SetGate, detail: "vm-g3-a0"}},
		"committed and released": {change: both(moving(nodev1.Phase_PHASE_CLEANING, atB, gated), committed,
			func(o *decide.VM) { o.Pods[0].Status.Phase = corev1.PodSucceeded }),
			want: want{do: decide.DeletePod, detail: "vm-g3-a0"}},
		"its images are not known": {change: both(moving(nodev1.Phase_PHASE_PENDING),
			func(o *decide.VM) { o.Images = nil }),
			want: want{do: decide.None, waits: decide.ReasonInvalid, refused: true}},
		"an order of a person is not the VM's wish": {change: both(moving(nodev1.Phase_PHASE_TRANSFERRING, none),
			func(o *decide.VM) { o.Object.Spec.NodeName, o.Orders[0].Labels = "", nil }),
			want: want{do: decide.None, waits: decide.ReasonOperation}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
}

func committed(o *decide.VM) { o.Record.Owner, o.Record.Generation = &nodev1.Owner{Node: "b"}, 4 }

// A fresh pod that has no node yet is not taken for a pod on the wrong node.
func TestUnscheduledPodKept(t *testing.T) {
	unscheduled := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Message: "0/2 nodes are available"}}
	}
	for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_MIGRATE, nodev1.Kind_KIND_WAKE} {
		for _, phase := range []nodev1.Phase{nodev1.Phase_PHASE_PENDING, nodev1.Phase_PHASE_PREPARING} {
			o := world(moving(phase, unscheduled))
			o.Record.Operation.Kind = kind
			if kind == nodev1.Kind_KIND_WAKE {
				o.Record.Owner, o.Pods = asleep, o.Pods[1:]
			}
			next := decide.NextVM(o)
			want{do: decide.None, waits: decide.ReasonOperation}.check(t, next)
			if next.Message != "pod vm-g4-a1: 0/2 nodes are available" {
				t.Errorf("it says %q", next.Message)
			}
		}
	}
}

// A VM that is wanted back while its move is under way runs on: the order is called off, and its pod goes.
func TestRetargetBack(t *testing.T) {
	o := world(moving(nodev1.Phase_PHASE_TRANSFERRING, func(*corev1.Pod) {}))
	o.Object.Spec.NodeName = "a"
	want{do: decide.AbortOperation, detail: "order"}.check(t, decide.NextVM(o))

	o.Orders[0].Spec.Abort = true
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(o))

	o.Record.Operation.Phase = nodev1.Phase_PHASE_ABORTING
	want{do: decide.DeletePod, detail: "vm-g4-a1"}.check(t, decide.NextVM(o))

	o.Record.Operation, o.Pods = nil, o.Pods[:1]
	o.Orders[0].Status.Phase = v1alpha1.MigrationFailed
	want{do: decide.None}.check(t, decide.NextVM(o)) // it runs, where it is wanted
}

// What could not be read is never absent, whatever else was seen.
func TestUnreadIsNeverAbsence(t *testing.T) {
	for _, change := range []func(*decide.VM){func(*decide.VM) {}, deleted, mode(v1alpha1.ModeStopped),
		func(o *decide.VM) { o.Object.Finalizers = nil }, moving(nodev1.Phase_PHASE_ABORTING, func(*corev1.Pod) {})} {
		o := world(change)
		o.Record, o.Unread = nil, errors.New("etcd is away")
		next := decide.NextVM(o)
		want{do: decide.None, waits: decide.ReasonRecordsUnavailable}.check(t, next)
		o.Object.Status.Phase, o.Object.Status.Owner.Node = v1alpha1.VMRunning, "a"
		if s := decide.VMStatus(o, next); s.Phase != v1alpha1.VMRunning || s.Owner.Node != "a" {
			t.Errorf("the status denies what it knew: %+v", s)
		}
	}
	want{do: decide.None, waits: decide.ReasonRecordsUnavailable}.check(t, decide.NextSet(decide.Set{
		Object: set(), Unread: errors.New("etcd is away")}))
}

// Without an engine each order is refused by its name, and the pods stay as they are.
func TestOrdersAreRefusedByName(t *testing.T) {
	for name, change := range map[string]func(*decide.VM){
		"Hibernate": mode(v1alpha1.ModeHibernated),
		"Wake":      owned(asleep),
		"Migrate":   func(o *decide.VM) { o.Object.Spec.NodeName = "b" },
		"restore": func(o *decide.VM) {
			o.Fenced, o.Object.Spec.OnNodeLoss = true, v1alpha1.NodeLossRestore
		},
		"restoreFrom": func(o *decide.VM) {
			o.Record, o.Pods, o.Object.Spec.RestoreFrom = nil, nil, &v1alpha1.LocalRef{Name: "s"}
		},
	} {
		o := world(change)
		o.Engine = false
		next := decide.NextVM(o)
		want{do: decide.None, waits: decide.ReasonEngineMissing, refused: true}.check(t, next)
		if !strings.Contains(next.Message, name) {
			t.Errorf("%s is refused by %q", name, next.Message)
		}
		s := decide.VMStatus(o, next)
		found := false
		for _, c := range s.Conditions {
			found = found || c.Type == decide.CondProgressing && c.Status == metav1.ConditionFalse &&
				c.Reason == string(decide.ReasonEngineMissing)
		}
		if !found {
			t.Errorf("%s: no condition says so: %v", name, s.Conditions)
		}
	}
}

// A member goes to where the record of the main one is. Its own wish and the set's count nothing.
func TestMemberFollowsMain(t *testing.T) {
	o := world(owned(nil))
	o.MainNode = "c"
	next := decide.NextVM(o)
	want{do: decide.MakePod, detail: "vm-g4-a0"}.check(t, next)
	terms := next.Pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || terms[0].MatchFields[0].Values[0] != "c" {
		t.Errorf("it goes to %v", terms)
	}
}
