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

func TestNextEviction(t *testing.T) {
	grace := func(s int64) *int64 { return &s }
	strategy := func(s v1alpha1.EvictionStrategy) func(*decide.Eviction) {
		return func(o *decide.Eviction) { o.VM.Spec.Eviction.Strategy = s }
	}
	op := operation(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_TRANSFERRING)
	for name, test := range map[string]struct {
		change func(*decide.Eviction)
		allow  bool
		order  bool
		says   string
	}{
		"it moves live":      {change: strategy(v1alpha1.EvictionLive), order: true},
		"without a strategy": {change: strategy(""), order: true},
		"it moves already":   {change: func(o *decide.Eviction) { o.Record.Operation = op }, says: "op1 is Transferring"},
		"its order waits":    {change: ordered("o9"), says: "VMOperation shop-evict-g3-0 is Pending"},
		"it moves by an order": {change: func(o *decide.Eviction) {
			ordered("op1")(o)
			o.Record.Operation = op
		}, says: "VMOperation shop-evict-g3-0 is Transferring"},
		"a move has shown that it cannot":         {change: failed("failed precondition"), allow: true},
		"the engine has refused a move":           {change: refusedFor(decide.ReasonRefused), allow: true},
		"a move was not begun: its node was lost": {change: refusedFor(decide.ReasonNodeLost), order: true},
		"a move was not begun: the VM slept":      {change: refusedFor(decide.ReasonVMSleeps), order: true},
		"a move was not begun: no such VM":        {change: refusedFor(decide.ReasonInvalid), order: true},
		"a move has failed by chance":             {change: failed("unavailable"), order: true},
		"a move of a generation before": {change: func(o *decide.Eviction) {
			failed("failed precondition")(o)
			o.Orders[0].Name = "vm-evict-g2-0"
		}, order: true},
		"it cannot, and moves live or not at all": {change: func(o *decide.Eviction) {
			failed("failed precondition")(o)
			o.VM.Spec.Migration.Lane = v1alpha1.LaneLive
		}, order: true},
		"it cannot, and keeps its address": {change: func(o *decide.Eviction) {
			failed("failed precondition")(o)
			o.VM.Spec.Network = v1alpha1.NetworkKeep
		}, order: true},
		"it cannot, and its pod ends soon": {change: func(o *decide.Eviction) {
			failed("failed precondition")(o)
			o.Grace = grace(20)
		}, says: "20 s, and a hibernate needs 30 s"},
		"it moves asleep alone": {change: func(o *decide.Eviction) { o.VM.Spec.Migration.Lane = v1alpha1.LaneCold },
			allow: true},
		"its node is lost":    {change: func(o *decide.Eviction) { o.Fenced = true }, says: "node a is lost"},
		"no engine":           {change: func(o *decide.Eviction) { o.Engine = false }, says: "no engine"},
		"records unavailable": {change: unread, says: "etcd is away"},
		"the pod cannot be read": {change: func(o *decide.Eviction) {
			*o = decide.Eviction{Unread: errors.New("no answer")}
		}, says: "no answer"},
		"the pod is gone":                {change: func(o *decide.Eviction) { o.Pod = nil }, allow: true},
		"not a VM":                       {change: plain, allow: true},
		"it has ended":                   {change: over, allow: true},
		"it ends":                        {change: func(o *decide.Eviction) { ending(o.Pod) }, allow: true},
		"it has no node":                 {change: func(o *decide.Eviction) { o.Pod.Spec.NodeName = "" }, allow: true},
		"its record is missing":          {change: func(o *decide.Eviction) { o.Record = nil }, says: "nobody can tell"},
		"the source of a move":           {change: moved, allow: true},
		"a destination":                  {change: destination(nodev1.Phase_PHASE_TRANSFERRING), allow: true},
		"a destination that may have it": {change: destination(nodev1.Phase_PHASE_SWITCHING), says: "op1 is Switching"},
		"None":                           {change: strategy(v1alpha1.EvictionNone), allow: true},
		"Cold":                           {change: strategy(v1alpha1.EvictionCold), allow: true},
		"Hibernate":                      {change: strategy(v1alpha1.EvictionHibernate), allow: true},
		"Cold, under an operation": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.Record.Operation = op
		}, says: "op1 is Transferring"},
		"Cold, and nodes end VMs at a stop": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.OnStop = false
		}, says: "would end the VM"},
		"Cold, and its pod is of another strategy": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.Pod.Annotations = nil
		}, says: "was made to end"},
		"Cold, in a short time": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.Grace = grace(20)
		}, says: "20 s, and a hibernate needs 30 s"},
		"Cold, and its class asks for more": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.Grace, o.Least = grace(60), 400
		}, says: "60 s, and a hibernate needs 400 s"},
		"Cold, for as long as its class asks": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.Grace, o.Least = grace(400), 400
		}, allow: true},
		"Cold, of a pod from before its class asked": {change: func(o *decide.Eviction) {
			strategy(v1alpha1.EvictionCold)(o)
			o.Least = 900
		}, allow: true},
	} {
		t.Run(name, func(t *testing.T) {
			vm := world()
			vm.Pods[0].Spec.TerminationGracePeriodSeconds = grace(600)
			vm.Pods[0].Annotations = map[string]string{pods.AnnotationOnStop: "hibernate"}
			o := decide.Eviction{Pod: &vm.Pods[0], VM: vm.Object, Record: vm.Record, Engine: true, OnStop: true, MinGrace: 30}
			test.change(&o)
			got := decide.NextEviction(o)
			if got.Allow != test.allow || got.Order != test.order || !strings.Contains(got.Message, test.says) ||
				!got.Allow && !got.Order && got.Message == "" {
				t.Errorf("answered %+v", got)
			}
		})
	}
}

func ordered(id types.UID) func(*decide.Eviction) {
	return func(o *decide.Eviction) {
		o.Orders = []v1alpha1.VMOperation{{ObjectMeta: metav1.ObjectMeta{Name: "shop-evict-g3-0", UID: id}}}
	}
}

// failed is a move that an eviction has ordered, and that has failed.
func failed(class string) func(*decide.Eviction) {
	return func(o *decide.Eviction) {
		o.Orders = []v1alpha1.VMOperation{{ObjectMeta: metav1.ObjectMeta{Name: "vm-evict-g3-0", UID: "o9"},
			Status: v1alpha1.VMOperationStatus{Phase: v1alpha1.MigrationFailed, Class: class, ID: "o9"}}}
	}
}

// refusedFor is a move that an eviction has ordered, and that was not begun.
func refusedFor(why decide.Reason) func(*decide.Eviction) {
	return func(o *decide.Eviction) {
		failed("failed precondition")(o)
		o.Orders[0].Status.ID = ""
		o.Orders[0].Status.Conditions = []metav1.Condition{{Type: decide.CondProgressing, Status: metav1.ConditionFalse,
			Reason: string(why)}}
	}
}

func over(o *decide.Eviction) { o.Pod.Status.Phase = corev1.PodFailed }

func unread(o *decide.Eviction) { o.Record, o.Unread = nil, errors.New("etcd is away") }

func plain(o *decide.Eviction) { delete(o.Pod.Labels, pods.LabelVM) }

func moved(o *decide.Eviction) { o.Record.Owner, o.Record.Generation = &nodev1.Owner{Node: "b"}, 4 }

func destination(phase nodev1.Phase) func(*decide.Eviction) {
	return func(o *decide.Eviction) {
		o.Record.Operation = operation(nodev1.Kind_KIND_MIGRATE, phase)
		p := pod(o.VM, "vm-g4-a1", 4, "b", corev1.PodRunning, of("op1", 1))
		o.Pod = &p
	}
}

// Each move that evictions order of a VM has a name of its own, however many have failed and are forgotten by now. Two
// evictions at the same moment order one.
func TestNextEvictionOrder(t *testing.T) {
	o := world()
	for name, c := range map[string]struct {
		there []string
		want  string
	}{
		"none":                        {nil, "vm-evict-g3-0"},
		"one":                         {[]string{"vm-evict-g3-0"}, "vm-evict-g3-1"},
		"the first ones are gone":     {[]string{"vm-evict-g3-8", "vm-evict-g3-12", "vm-evict-g3-9"}, "vm-evict-g3-13"},
		"of another generation":       {[]string{"vm-evict-g30-4", "vm-evict-g2-7"}, "vm-evict-g3-0"},
		"what a person has called so": {[]string{"vm-evict-g3-x", "vm-evict-g3", "vm-evict-g3--4"}, "vm-evict-g3-0"},
		"the last number, by a person": {[]string{"vm-evict-g3-2147483647", "vm-evict-g3-2147483648"},
			"vm-evict-g3-2147483649"},
	} {
		var orders []v1alpha1.VMOperation
		for _, name := range c.there {
			orders = append(orders, v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		if got := decide.NextEvictionOrder(o.Object, o.Record, orders); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A move that an eviction has ordered may not begin at once. It is not made when the VM has left the pod, or is to be
// something else, nor long after the eviction. An eviction that goes on orders anew.
func TestMoveOfAnEvictionThatIsOver(t *testing.T) {
	goes := want{do: decide.Order, detail: "Migrate "}
	over := want{do: decide.None, waits: decide.ReasonEnded, refused: true}
	for name, c := range map[string]struct {
		change func(*decide.Operation)
		want   want
	}{
		"it goes on":                 {func(*decide.Operation) {}, goes},
		"the VM came elsewhere":      {func(o *decide.Operation) { o.Record.Generation = 5 }, over},
		"the VM was woken here":      {func(o *decide.Operation) { o.Record.Generation = 4 }, over},
		"the VM is wanted elsewhere": {func(o *decide.Operation) { o.VM.Generation = 2 }, over},
		"it is old":                  {func(o *decide.Operation) { o.Now = now.Add(11 * time.Minute) }, over},
		"it is old, and at work": {func(o *decide.Operation) {
			found(nodev1.Phase_PHASE_PENDING)(o)
			o.Now = now.Add(time.Hour)
		}, want{do: decide.None, waits: decide.ReasonOperation}},
		"a person's, however old": {func(o *decide.Operation) {
			o.Object.Annotations = nil
			o.Now, o.Record.Generation = now.Add(time.Hour), 5
		}, goes},
	} {
		o := operationWorld()
		o.Object.Name, o.Object.Spec.NodeName, o.Now = "vm-evict-g3-0", "", now.Add(time.Minute)
		o.Object.Annotations = map[string]string{decide.AnnotationGeneration: "1", decide.AnnotationEvicted: "3"}
		o.VM.Generation = 1
		c.change(&o)
		t.Run(name, func(t *testing.T) { c.want.check(t, decide.NextOperation(o)) })
	}
}
