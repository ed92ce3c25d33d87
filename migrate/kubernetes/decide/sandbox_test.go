package decide_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	sandboxUID = "11111111-1111-1111-1111-111111111111"
	podUID     = "22222222-2222-2222-2222-222222222222"
	podBefore  = "33333333-3333-3333-3333-333333333333"
)

// sandboxed is the pod of Sandbox agent on node a, whose VM has ended or never ran.
func sandboxed() decide.Resolve {
	controller, class, seconds := true, "godwit", int64(60)
	id := pods.SandboxRecord("ns", sandboxUID)
	return decide.Resolve{Node: "a", Asked: &nodev1.Pod{Namespace: "ns", Name: "agent", Uid: podUID}, Named: id,
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", UID: podUID,
			Labels:      map[string]string{pods.LabelSandbox: "4fe7f1a6"},
			Annotations: map[string]string{pods.AnnotationOnStop: "hibernate", pods.AnnotationVM: "sbx-" + sandboxUID},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "agents.x-k8s.io/v1beta1", Kind: "Sandbox", Name: "agent",
				UID: sandboxUID, Controller: &controller}}},
			Spec: corev1.PodSpec{NodeName: "a", RuntimeClassName: &class, TerminationGracePeriodSeconds: &seconds}},
		Sandbox: &decide.Sandbox{Name: "agent", UID: sandboxUID, Pod: "agent"},
		Record:  &nodev1.Record{Vm: &nodev1.VM{Namespace: "k8s.io", Id: id}, Uid: sandboxUID, Version: 7}, Noted: "agent",
		Had: true,
		Now: now}
}

// wakes has an operation that wakes the VM for a pod.
func wakes(pod, place string, phase nodev1.Phase) func(*decide.Resolve) {
	return func(o *decide.Resolve) {
		o.Record.Owner = asleep
		o.Record.Operation = &nodev1.Operation{Id: pods.WakeFor(pod, 6), Kind: nodev1.Kind_KIND_WAKE, Phase: phase,
			ByPlace: true, Place: place}
	}
}

// lostWith has a node that somebody vouches for have the VM.
func lostWith(more ...func(*decide.Resolve)) func(*decide.Resolve) {
	return func(o *decide.Resolve) {
		o.Record.Owner, o.Fenced, o.Sandbox.Restore = &nodev1.Owner{Node: "b"}, true, true
		for _, change := range more {
			change(o)
		}
	}
}

func snapshot(o *decide.Resolve) { o.Record.Snapshots = []*nodev1.SnapshotRef{{Digest: "sha256:aa"}} }

func TestNextSandbox(t *testing.T) {
	denied, failed := errdefs.IsPermissionDenied, errdefs.IsFailedPrecondition
	pending, transferring := nodev1.Phase_PHASE_PENDING, nodev1.Phase_PHASE_TRANSFERRING
	for name, test := range map[string]struct {
		change func(*decide.Resolve)
		do     decide.Do // empty: it is the VM
		waits  bool
		class  func(error) bool
		says   string // of the refusal, or the operation
	}{
		"it boots":     {change: func(*decide.Resolve) {}},
		"its own node": {change: func(o *decide.Resolve) { o.Record.Owner = &nodev1.Owner{Node: "a"} }},
		"it has no record": {change: func(o *decide.Resolve) { o.Record, o.Noted, o.Had = nil, "", false },
			do: decide.EnsureRecord},
		"its record was taken away": {change: func(o *decide.Resolve) { o.Record, o.Noted = nil, "" }, class: failed,
			says: "copy"},
		"that it has one is not written down": {change: func(o *decide.Resolve) { o.Had = false }, do: decide.NoteOwner},
		"its record does not say whose": {change: func(o *decide.Resolve) { o.Noted = "" },
			do: decide.NoteOwner},
		"it sleeps": {change: func(o *decide.Resolve) { o.Record.Owner = asleep }, do: decide.Order,
			says: "sbx-" + podUID + "-7"},
		"its wake waits for its place": {change: wakes(podUID, "", pending), waits: true},
		"its wake comes":               {change: wakes(podUID, podUID, pending)},
		"its wake goes on":             {change: wakes(podUID, podUID, transferring)},
		"its wake came to nothing":     {change: wakes(podUID, podUID, nodev1.Phase_PHASE_ABORTING), waits: true},
		"the wake of a pod before": {change: wakes(podBefore, podBefore, transferring), do: decide.OrderAbort,
			says: "sbx-" + podBefore + "-6"},
		"the wake of a pod before is called off": {change: func(o *decide.Resolve) {
			wakes(podBefore, podBefore, transferring)(o)
			o.Record.Operation.Cancelled = true
		}, waits: true},
		"the wake of a pod before is over": {change: wakes(podBefore, podBefore, nodev1.Phase_PHASE_CLEANING), waits: true},
		"the pod before still hibernates": {change: func(o *decide.Resolve) {
			o.Record.Operation = operation(nodev1.Kind_KIND_HIBERNATE, transferring)
		}, waits: true},
		"a move of somebody": {change: func(o *decide.Resolve) {
			o.Record.Operation = operation(nodev1.Kind_KIND_MIGRATE, pending)
		}, waits: true},
		"its node is lost": {change: lostWith(snapshot), do: decide.OrderRecover, says: "sbx-" + podUID + "-7"},
		"its node is lost, and its policy waits": {change: lostWith(snapshot, func(o *decide.Resolve) {
			o.Sandbox.Restore = false
		}), class: failed, says: "godwit.dev/on-node-loss=Restore"},
		"its node is lost, and it has no snapshot": {change: lostWith(), class: failed, says: "its state is lost"},
		"its node is lost while it hibernates": {change: lostWith(snapshot, func(o *decide.Resolve) {
			o.Record.Operation = operation(nodev1.Kind_KIND_HIBERNATE, transferring)
			o.Record.Operation.Source = "b"
		}), do: decide.OrderRecover, says: "sbx-" + podUID + "-7"},
		"its node is lost before the hibernate is cleaned up": {change: lostWith(func(o *decide.Resolve) {
			o.Record.Operation = operation(nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING)
			o.Record.Operation.Source, o.Record.Owner, o.Sandbox.Restore = "b", asleep, false
		}), do: decide.OrderRecover, says: "sbx-" + podUID + "-7"},
		"it slept at a node that is gone for long": {change: sleptAt("b", time.Hour), do: decide.Order,
			says: "sbx-" + podUID + "-7"},
		"it has just slept at another node":             {change: sleptAt("b", time.Second), waits: true},
		"it slept here, and is not cleaned up for long": {change: sleptAt("a", time.Hour), waits: true},
		"the node of its wake before is lost": {change: lostWith(func(o *decide.Resolve) {
			wakes(podBefore, podBefore, transferring)(o)
			o.Record.Operation.Destination, o.Sandbox.Restore = "b", false
		}), do: decide.OrderRecover, says: "sbx-" + podUID + "-7"},
		"its own node is called lost": {change: lostWith(func(o *decide.Resolve) { o.Record.Owner.Node = "a" })},
		"another node has it": {change: func(o *decide.Resolve) { o.Record.Owner = &nodev1.Owner{Node: "b"} }, class: failed,
			says: "node b has the VM"},
		"its state is lost": {change: func(o *decide.Resolve) { o.Record.Lost = "disk" }, class: failed, says: "lost"},
		"another node asks": {change: func(o *decide.Resolve) { o.Node = "b" }, class: denied, says: `node "a"`},
		"no runtime class": {change: func(o *decide.Resolve) { o.Pod.Spec.RuntimeClassName = nil }, class: denied,
			says: "runtimeClassName"},
		"the pod is deleted": {change: func(o *decide.Resolve) { o.Pod.DeletionTimestamp = &metav1.Time{} }, class: failed,
			says: "being deleted"},
		"no Sandbox":        {change: func(o *decide.Resolve) { o.Sandbox = nil }, class: failed, says: "gone"},
		"it was made again": {change: func(o *decide.Resolve) { o.Sandbox.UID = podBefore }, class: failed, says: "gone"},
		"it is deleted": {change: func(o *decide.Resolve) { o.Sandbox.Deleted = true }, class: failed,
			says: "is deleted"},
		"it has expired": {change: func(o *decide.Resolve) { o.Sandbox.Shutdown = now }, class: failed,
			says: "expired"},
		"it expires": {change: func(o *decide.Resolve) { o.Sandbox.Shutdown = now.Add(time.Second) }},
		"it is suspended": {change: func(o *decide.Resolve) { o.Sandbox.Suspended = true }, class: failed,
			says: "Suspended"},
		"a pod of a warm pool": {change: func(o *decide.Resolve) { o.Sandbox.Pod, o.Pod.Name = "pool-1", "pool-1" }},
		"a forged owner": {change: func(o *decide.Resolve) { o.Pod.Name = "thief" }, class: denied,
			says: "is called agent"},
		"a name whose hash is another one": {change: func(o *decide.Resolve) { o.Pod.Labels[pods.LabelSandbox] = "1" },
			class: denied, says: "4fe7f1a6"},
		"it was given no name": {change: func(o *decide.Resolve) { o.Named = "0123abcd" }, class: denied,
			says: "packaging/kubernetes/agent-sandbox"},
		"a name that its node alone says": {change: func(o *decide.Resolve) { delete(o.Pod.Annotations, pods.AnnotationVM) },
			class: denied, says: "packaging/kubernetes/agent-sandbox"},
		"a name of another Sandbox, for the API server": {change: func(o *decide.Resolve) {
			o.Pod.Annotations[pods.AnnotationVM] = "sbx-" + podBefore
		}, class: denied, says: "packaging/kubernetes/agent-sandbox"},
		"a name of another Sandbox": {change: func(o *decide.Resolve) { o.Named = pods.SandboxRecord("ns", podBefore) },
			class: denied, says: sandboxUID},
		"a record of another VM": {change: func(o *decide.Resolve) { o.Record.Uid = podBefore }, class: denied,
			says: "is not of Sandbox"},
		"a record that a node made": {change: func(o *decide.Resolve) { o.Record.MadeBy = "b" }, class: denied,
			says: "is not of Sandbox"},
	} {
		t.Run(name, func(t *testing.T) {
			o := sandboxed()
			test.change(&o)
			got, next, err := decide.NextSandbox(o)
			is := test.class == nil && test.do == "" && !test.waits
			if test.class == nil && err != nil || test.class != nil && !test.class(err) ||
				err != nil && !strings.Contains(err.Error(), test.says) {
				t.Fatalf("refused: %v", err)
			}
			if want := (decide.Resolved{UID: sandboxUID, Grace: time.Minute}); is && got != want || !is && got.UID != "" {
				t.Errorf("answered %+v", got)
			}
			if err != nil {
				return
			}
			if next.Do != cmp.Or(test.do, decide.None) || test.waits == (next.Waits == "") ||
				test.do != "" && next.Operation != test.says {
				t.Errorf("next is %+v", next)
			}
		})
	}
}

// A pod that no Sandbox controls has none of the names that are kept for those, whatever it says of itself.
func TestNamesOfSandboxes(t *testing.T) {
	for name, change := range map[string]func(*decide.Resolve){
		"a stranger": func(o *decide.Resolve) { o.Pod.OwnerReferences = nil },
		"crictl":     func(o *decide.Resolve) { o.Pod = nil },
		"of another group": func(o *decide.Resolve) {
			o.Pod.OwnerReferences[0].APIVersion = "agents.example/v1"
		},
		"no controller": func(o *decide.Resolve) { o.Pod.OwnerReferences[0].Controller = nil },
	} {
		o := sandboxed()
		change(&o)
		if _, err := decide.NextResolve(o); o.OptedIn() || !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: opted in %v, %v", name, o.OptedIn(), err)
		}
	}
	o := sandboxed()
	o.Pod.Annotations, o.Named, o.Record = nil, "0123abcd", nil // as any pod
	if got, err := decide.NextResolve(o); o.OptedIn() || err != nil || got.UID != "" {
		t.Errorf("a pod of a Sandbox without the opt-in: %v, %+v, %v", o.OptedIn(), got, err)
	}
}

// A Sandbox whose VM sleeps, or is at another node, gets no second one from nothing.
func TestOptedOut(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*decide.Resolve)
		refused bool
	}{
		"its VM sleeps":           {func(o *decide.Resolve) { o.Record.Owner = asleep }, true},
		"its VM is at a node":     {func(o *decide.Resolve) { o.Record.Owner = &nodev1.Owner{Node: "b"} }, true},
		"it never had one":        {func(o *decide.Resolve) { o.Record = nil }, false},
		"of no Sandbox":           {func(o *decide.Resolve) { o.Pod.OwnerReferences = nil }, false},
		"a record of another VM":  {func(o *decide.Resolve) { o.Record.Uid = podBefore }, false},
		"a record of a node's VM": {func(o *decide.Resolve) { o.Record.MadeBy = "b" }, false},
	} {
		o := sandboxed()
		o.Pod.Annotations = nil
		test.change(&o)
		if err := o.OptedOut(o.Record); test.refused != errdefs.IsFailedPrecondition(err) ||
			test.refused != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The VM of a Sandbox boots in the pod that the API server gave its name, at the node that this pod is bound to.
func TestBootsSandbox(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		boots  bool
	}{
		"its pod":           {func(*corev1.Pod) {}, true},
		"of another node":   {func(p *corev1.Pod) { p.Spec.NodeName = "b" }, false},
		"without a node":    {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"without a name":    {func(p *corev1.Pod) { delete(p.Annotations, pods.AnnotationVM) }, false},
		"without a Sandbox": {func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"of another one":    {func(p *corev1.Pod) { p.OwnerReferences[0].UID = podBefore }, false},
		"it has ended":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"it ends":           {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, false},
	} {
		o := sandboxed()
		test.change(o.Pod)
		if got := decide.BootsSandbox(o.Record, o.Pod, "a"); got != test.boots {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStopOfSandbox(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(*decide.Stop)
		hibernate bool
		wait      bool
		says      string
	}{
		"its record is gone": {change: func(o *decide.Stop) { o.Record, o.Sandbox = nil, nil }, wait: true,
			says: "put it back"},
		"its record is gone, and it is another's pod": {change: func(o *decide.Stop) {
			o.Record, o.Sandbox, o.UID = nil, nil, podBefore
		}, says: "gone"},
		"suspended": {change: func(o *decide.Stop) { o.Sandbox.Suspended = true }, hibernate: true,
			says: "is deleted"},
		"its pod is evicted": {change: func(*decide.Stop) {}, hibernate: true, says: "is deleted"},
		"deleted by force":   {change: func(o *decide.Stop) { o.Pod = nil }, hibernate: true, says: "by force"},
		"it is gone":         {change: func(o *decide.Stop) { o.Sandbox = nil }, says: "gone"},
		"it was made again":  {change: func(o *decide.Stop) { o.Sandbox.UID = podBefore }, says: "gone"},
		"it is deleted":      {change: func(o *decide.Stop) { o.Sandbox.Deleted = true }, says: "deleted"},
		"it has expired":     {change: func(o *decide.Stop) { o.Sandbox.Shutdown = now }, says: "expired"},
		"its VM is another":  {change: func(o *decide.Stop) { o.UID = podBefore }, says: "gone"},
		"another pod has it": {change: func(o *decide.Stop) { o.Record.Place = podBefore },
			says: "does not name"},
	} {
		t.Run(name, func(t *testing.T) {
			r := sandboxed()
			r.Pod.DeletionTimestamp = &metav1.Time{Time: now.Add(time.Minute)}
			r.Record.Owner, r.Record.Place = &nodev1.Owner{Node: "a"}, podUID
			o := decide.Stop{Node: "a", Asked: r.Asked, UID: sandboxUID, Pod: r.Pod, Sandbox: r.Sandbox, Record: r.Record,
				Now: now}
			test.change(&o)
			got := decide.NextStop(o)
			if got.Hibernate != test.hibernate || !strings.Contains(got.Reason, test.says) || got.Wait != test.wait ||
				got.Stays {
				t.Errorf("answered %+v", got)
			}
		})
	}
}

// A wake that failed is tried again later and later, for each pod anew, and the reason is told until then. One that was
// called off, or is another pod's, does not count, and one that succeeded ends the count.
func TestWakeBacksOff(t *testing.T) {
	wake := func(pod string, phase nodev1.Phase, ago time.Duration) *nodev1.Operation {
		return &nodev1.Operation{Id: pods.WakeFor(pod, 6), Kind: nodev1.Kind_KIND_WAKE, Phase: phase, Reason: "no registry",
			ClosedUnixNano: now.Add(-ago).UnixNano()}
	}
	failed := func(ago time.Duration) *nodev1.Operation { return wake(podUID, nodev1.Phase_PHASE_FAILED, ago) }
	for name, test := range map[string]struct {
		closed []*nodev1.Operation
		wakes  bool
	}{
		"none":                    {nil, true},
		"one, just now":           {[]*nodev1.Operation{failed(time.Second)}, false},
		"one, ten seconds ago":    {[]*nodev1.Operation{failed(10 * time.Second)}, true},
		"two, ten seconds ago":    {[]*nodev1.Operation{failed(time.Minute), failed(10 * time.Second)}, false},
		"two, twenty seconds ago": {[]*nodev1.Operation{failed(time.Minute), failed(20 * time.Second)}, true},
		"many":                    {slices.Repeat([]*nodev1.Operation{failed(299 * time.Second)}, 32), false},
		"many, long ago":          {slices.Repeat([]*nodev1.Operation{failed(300 * time.Second)}, 32), true},
		"by a clock a bit ahead":  {[]*nodev1.Operation{failed(-10 * time.Second)}, false},
		"the clock was set back":  {[]*nodev1.Operation{failed(-time.Hour)}, true},
		"and a try failed since":  {[]*nodev1.Operation{failed(-time.Hour), failed(time.Second)}, false},
		"a pod before":            {[]*nodev1.Operation{wake(podBefore, nodev1.Phase_PHASE_FAILED, 0)}, true},
		"called off":              {[]*nodev1.Operation{wake(podUID, nodev1.Phase_PHASE_ABORTED, 0)}, true},
		"it woke since": {[]*nodev1.Operation{failed(time.Second), wake(podUID, nodev1.Phase_PHASE_SUCCEEDED, 0)},
			true},
	} {
		for kind, change := range map[decide.Do]func(*decide.Resolve){
			decide.Order:        func(o *decide.Resolve) { o.Record.Owner = asleep },
			decide.OrderRecover: lostWith(snapshot),
		} {
			o := sandboxed()
			change(&o)
			o.Closed = test.closed
			_, next, err := decide.NextSandbox(o)
			switch {
			case test.wakes && (err != nil || next.Do != kind):
				t.Errorf("%s, %s: %+v, %v", name, kind, next, err)
			case !test.wakes && (!errors.Is(err, decide.ErrWakeFailed) || !errdefs.IsFailedPrecondition(err) ||
				!strings.Contains(err.Error(), "no registry")):
				t.Errorf("%s, %s: %+v, %v", name, kind, next, err)
			}
			o.Record.Owner, o.Fenced = &nodev1.Owner{Node: "a"}, false
			if _, next, err := decide.NextSandbox(o); err != nil || next.Do != decide.None {
				t.Errorf("%s: a VM that runs: %+v, %v", name, next, err)
			}
		}
	}
}
