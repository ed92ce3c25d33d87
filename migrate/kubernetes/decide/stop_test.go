package decide_test

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func TestNextStop(t *testing.T) {
	at := func(in time.Duration, grace int64) func(*decide.Stop) {
		return func(o *decide.Stop) {
			end := metav1.NewTime(now.Add(in))
			o.Pod.DeletionTimestamp, o.Pod.DeletionGracePeriodSeconds = &end, &grace
		}
	}
	gone := at(time.Minute, 60)
	after := func(change func(*decide.Stop)) func(*decide.Stop) {
		return func(o *decide.Stop) { gone(o); change(o) }
	}
	for name, test := range map[string]struct {
		change          func(o *decide.Stop)
		hibernate, wait bool
		grace           time.Duration
		says            string
	}{
		"deleted":                    {change: gone, hibernate: true, grace: time.Minute, says: "is deleted"},
		"deleted, by a clock behind": {change: at(time.Hour, 60), hibernate: true, grace: time.Minute},
		"deleted, late":              {change: at(-time.Hour, 60), hibernate: true, grace: time.Second},
		"evicted":                    {change: disrupted, hibernate: true, says: "disruption"},
		"the node shuts down": {change: func(o *decide.Stop) { o.Shutdown = true }, hibernate: true,
			grace: 20 * time.Second, says: "shuts down"},
		"deleted by force": {change: func(o *decide.Stop) { o.Pod = nil }, hibernate: true,
			says: "by force"},
		"a liveness probe":   {change: func(*decide.Stop) {}, says: "the pod stays"},
		"its object is gone": {change: after(func(o *decide.Stop) { o.VM = nil }), says: "is gone"},
		"its object is another one": {change: after(func(o *decide.Stop) { o.VM.UID = "u2" }), hibernate: true,
			grace: time.Minute, says: "is deleted"},
		"its object is another one, and so is the record": {change: after(func(o *decide.Stop) {
			o.VM.UID, o.Record.Uid = "u2", "u3"
		}), says: "does not name"},
		"its object is another one, which is deleted": {change: after(func(o *decide.Stop) {
			o.VM.UID, o.VM.DeletionTimestamp = "u2", &metav1.Time{}
		}), hibernate: true, grace: time.Minute},
		"its object is deleted": {change: after(func(o *decide.Stop) { o.VM.DeletionTimestamp = &metav1.Time{} }),
			says: "deleted"},
		"it is to be stopped":           {change: after(stopped), says: "Stopped"},
		"it is given up at an eviction": {change: after(givenUp), says: "None"},
		"its record is gone": {change: after(func(o *decide.Stop) { o.Record = nil }), wait: true, grace: time.Minute,
			says: "put it back"},
		"its record is gone, and it is to be stopped": {change: after(func(o *decide.Stop) {
			stopped(o)
			o.Record = nil
		}), says: "Stopped"},
		"its record and its object are gone": {change: after(func(o *decide.Stop) { o.Record, o.VM = nil, nil }),
			says: "is gone"},
		"another node has it": {change: after(func(o *decide.Stop) { o.Node = "b" }), says: "does not name"},
		"another pod has it": {change: after(func(o *decide.Stop) { o.Record.Place = "p" }),
			says: "does not name"},
		"it sleeps": {change: after(func(o *decide.Stop) { o.Record.Owner = asleep }),
			says: "does not name"},
		"under an operation": {change: after(func(o *decide.Stop) {
			o.Record.Operation = operation(nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_TRANSFERRING)
		}), wait: true, says: "op1 is Transferring"},
	} {
		t.Run(name, func(t *testing.T) {
			vm := world()
			o := decide.Stop{Node: "a", Asked: &nodev1.Pod{Namespace: "ns", Name: "vm-g3-a0", Uid: "vm-g3-a0"}, UID: "u1",
				Pod: &vm.Pods[0], VM: vm.Object, Record: vm.Record, Now: now, ShutdownGrace: 20 * time.Second}
			test.change(&o)
			got := decide.NextStop(o)
			if stays := name == "a liveness probe"; got.Stays != stays {
				t.Errorf("another reason may come: %v", got.Stays)
			}
			if shuts := name == "the node shuts down"; got.FromSignal != shuts {
				t.Errorf("its grace counts from the signal: %v", got.FromSignal)
			}
			if got.Hibernate != test.hibernate || got.Wait != test.wait || got.Grace != test.grace ||
				!strings.Contains(got.Reason, test.says) {
				t.Errorf("answered %+v", got)
			}
		})
	}
}

// What has become of a VM whose hibernate failed, is told of the VM that the node has, and of no other one.
func TestFailedStop(t *testing.T) {
	under := func(phase nodev1.Phase) func(*decide.Stop) {
		return func(o *decide.Stop) { o.Record.Operation = operation(nodev1.Kind_KIND_HIBERNATE, phase) }
	}
	for name, test := range map[string]struct {
		change func(*decide.Stop)
		told   string
	}{
		"it runs":             {func(*decide.Stop) {}, decide.EventHibernateAborted},
		"aborted":             {under(nodev1.Phase_PHASE_ABORTING), decide.EventHibernateAborted},
		"it may sleep yet":    {under(nodev1.Phase_PHASE_TRANSFERRING), decide.EventHibernateUnknown},
		"it will sleep":       {under(nodev1.Phase_PHASE_COMMITTED), decide.EventHibernateUnknown},
		"it sleeps":           {func(o *decide.Stop) { o.Record.Owner = asleep }, ""},
		"another node has it": {func(o *decide.Stop) { o.Node = "b" }, ""},
		"another pod has it":  {func(o *decide.Stop) { o.Record.Place = "p" }, ""},
		"another VM":          {func(o *decide.Stop) { o.UID = "u2" }, ""},
		"its object is gone":  {func(o *decide.Stop) { o.VM = nil }, ""},
		"it has no record":    {func(o *decide.Stop) { o.Record = nil }, ""},
	} {
		vm := world()
		o := decide.Stop{Node: "a", Asked: &nodev1.Pod{Namespace: "ns", Name: "vm-g3-a0", Uid: "vm-g3-a0"}, UID: "u1",
			Pod: &vm.Pods[0], VM: vm.Object, Record: vm.Record, Now: now}
		test.change(&o)
		if told := decide.FailedStop(o); told != test.told {
			t.Errorf("%s: told %q, want %q", name, told, test.told)
		}
	}
}

func disrupted(o *decide.Stop) {
	o.Pod.Status.Conditions = append(o.Pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget,
		Status: corev1.ConditionTrue})
}

func stopped(o *decide.Stop) { o.VM.Spec.OperatingMode = v1alpha1.ModeStopped }

func givenUp(o *decide.Stop) { o.VM.Spec.Eviction.Strategy = v1alpha1.EvictionNone }

func TestNextResolve(t *testing.T) {
	denied, failed := errdefs.IsPermissionDenied, errdefs.IsFailedPrecondition
	stranger := func(change func(*decide.Resolve)) func(*decide.Resolve) {
		return func(o *decide.Resolve) { o.Pod.OwnerReferences = nil; change(o) }
	}
	for name, test := range map[string]struct {
		change func(*decide.Resolve)
		uid    string
		grace  time.Duration
		class  func(error) bool
		says   string
	}{
		"its own": {change: func(*decide.Resolve) {}, uid: "u1", grace: 10 * time.Minute},
		"without the opt-in": {change: func(o *decide.Resolve) { delete(o.Pod.Annotations, pods.AnnotationOnStop) },
			uid: "u1"},
		"a wake brings it":    {change: beingWoken, uid: "u1", grace: 10 * time.Minute},
		"of another node":     {change: func(o *decide.Resolve) { o.Node = "b" }, class: denied, says: `node "a"`},
		"no object":           {change: func(o *decide.Resolve) { o.VM = nil }, class: failed, says: "gone"},
		"of an object before": {change: func(o *decide.Resolve) { o.VM.UID = "u2" }, class: failed, says: "gone"},
		"of another record":   {change: func(o *decide.Resolve) { o.Record.Uid = "u2" }, class: failed, says: "VMRecord"},
		"it sleeps": {change: func(o *decide.Resolve) { o.Record.Owner = asleep }, class: failed,
			says: "operatingMode Running"},
		"a forged owner": {change: func(o *decide.Resolve) { delete(o.Pod.Labels, pods.LabelRecordUID) }, class: denied,
			says: "has not made it"},
		"no runtime class": {change: func(o *decide.Resolve) { o.Pod.Spec.RuntimeClassName = nil }, class: denied,
			says: "runtimeClassName"},
		"a stranger":      {change: stranger(func(*decide.Resolve) {}), class: denied, says: "none of its pods"},
		"crictl":          {change: func(o *decide.Resolve) { o.Pod = nil }, class: denied, says: "none of its pods"},
		"of another kind": {change: func(o *decide.Resolve) { o.Pod.OwnerReferences[0].Kind = "Job" }, class: denied},
		"of another group": {change: func(o *decide.Resolve) { o.Pod.OwnerReferences[0].APIVersion = "x/v1" },
			class: denied},
		"what is left of a VM": {change: stranger(func(o *decide.Resolve) { o.VM = nil }), class: denied,
			says: "none of its pods"},
		"a pod with a name of its own": {change: stranger(func(o *decide.Resolve) { o.VM, o.Record.MadeBy = nil, "a" })},
		"a pod that never ran":         {change: stranger(func(o *decide.Resolve) { o.VM, o.Record = nil, nil })},
	} {
		t.Run(name, func(t *testing.T) {
			vm := world()
			seconds, class := int64(600), "godwit"
			p := &vm.Pods[0]
			p.Spec.TerminationGracePeriodSeconds, p.Spec.RuntimeClassName = &seconds, &class
			p.Annotations = map[string]string{pods.AnnotationOnStop: "hibernate"}
			vm.Record.Owner = nil
			o := decide.Resolve{Node: "a", Asked: &nodev1.Pod{Namespace: "ns", Name: p.Name, Uid: string(p.UID)}, Named: "ns.vm",
				Pod: p, VM: vm.Object, Record: vm.Record}
			test.change(&o)
			got, err := decide.NextResolve(o)
			if test.class == nil && err != nil || test.class != nil && !test.class(err) || got.UID != test.uid ||
				got.Grace != test.grace || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("answered %+v, %v", got, err)
			}
		})
	}
}

func beingWoken(o *decide.Resolve) {
	o.Record.Owner = asleep
	o.Record.Operation = operation(nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_PENDING)
}

// A VM boots in a pod that the operator has made for that, at the node that it is bound to, and nowhere else.
func TestBootsIn(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		boots  bool
	}{
		"its pod":             {func(*corev1.Pod) {}, true},
		"a boot tried again":  {func(p *corev1.Pod) { p.Labels[pods.LabelGeneration] = "2" }, true},
		"of another node":     {func(p *corev1.Pod) { p.Spec.NodeName = "b" }, false},
		"without a node":      {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"of another record":   {func(p *corev1.Pod) { p.Labels[pods.LabelRecordUID] = "u2" }, false},
		"without an owner":    {func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"of an operation":     {func(p *corev1.Pod) { p.Labels[pods.LabelOperation] = "op1" }, false},
		"it has ended":        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"it ends":             {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, false},
		"of a later boot yet": {func(p *corev1.Pod) { p.Labels[pods.LabelGeneration] = "9" }, false},
	} {
		vm := world()
		vm.Record.Owner, vm.Record.Generation = nil, 2
		test.change(&vm.Pods[0])
		if got := decide.BootsIn(vm.Record, &vm.Pods[0], "a"); got != test.boots {
			t.Errorf("%s: %v", name, got)
		}
	}
}
