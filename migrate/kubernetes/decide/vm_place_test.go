package decide_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// waking is a VM under a wake that waits for a place, by its own wish or by a person's.
func waking(wish string, own bool) decide.VM {
	o := world(moving(nodev1.Phase_PHASE_PENDING))
	o.Record.Owner, o.Pods, o.Object.Spec.NodeName = asleep, nil, wish
	op := o.Record.Operation
	op.Kind, op.Source, op.ByPlace, op.Wish = nodev1.Kind_KIND_WAKE, "", true, wish
	o.Orders[0].Spec.Kind, o.Orders[0].Spec.NodeName = v1alpha1.KindWake, wish
	if !own {
		o.Orders[0].Labels = nil
	}
	return o
}

// nodeName is taken back in the moment in which the source is gone and no pod is there: the wake is called off, and the
// next pod has the intent, and no affinity.
func TestClearNodeNameNoPod(t *testing.T) {
	o := waking("b", true)
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(o)) // the engine asks for the pod
	next := decide.Arrival(o)
	want{do: decide.MakePod, detail: "vm-g4-a1"}.check(t, next)
	if next.Pod.Spec.Affinity == nil {
		t.Error("the wanted node is not asked for")
	}
	o.Object.Spec.NodeName = ""
	want{do: decide.AbortOperation, detail: "order"}.check(t, decide.NextVM(o))

	o.Record.Operation, o.Orders = nil, nil
	want{do: decide.MakeOperation, detail: "Wake "}.check(t, decide.NextVM(o))
	next = decide.Arrival(waking("", true))
	want{do: decide.MakePod, detail: "vm-g4-a1"}.check(t, next)
	if next.Pod.Spec.Affinity != nil || next.Pod.Labels[pods.LabelOperation] != "op1" {
		t.Errorf("affinity %v, labels %v", next.Pod.Spec.Affinity, next.Pod.Labels)
	}
}

// A pod goes where its operation says, whatever the VM's own nodeName is meanwhile. A wake that has its node goes on,
// and so does the wake of a person.
func TestTheOperationSaysWhere(t *testing.T) {
	placed := func(o *decide.VM) { o.Record.Operation.Destination, o.Object.Spec.NodeName = "b", "c" }
	for name, o := range map[string]decide.VM{
		"a wish": waking("b", false),
		"a destination by the CLI": world(moving(nodev1.Phase_PHASE_PREPARING), placed,
			func(o *decide.VM) { o.Orders = nil }),
	} {
		if name == "a wish" {
			o.Object.Spec.NodeName = "c"
			want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(o))
		}
		next := decide.Arrival(o)
		if name != "a wish" {
			want{do: decide.None, waits: decide.ReasonOperation}.check(t, next)
			next = decide.NextVM(o) // it waits for no place, and its pod is made all the same
		}
		want{do: decide.MakePod, detail: "vm-g4-a1"}.check(t, next)
		terms := next.Pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if got := terms[0].MatchFields[0]; got.Key != metav1.ObjectNameField || got.Values[0] != "b" {
			t.Errorf("%s: the pod goes to %v", name, got)
		}
	}
	o := waking("b", true)
	o.Record.Operation.Destination, o.Object.Spec.NodeName = "b", ""
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(o))
}

// A pod of an operation that is closed goes, and no other: not the VM's own, and none of the operation that is open.
func TestLeftoverPod(t *testing.T) {
	plain := world().Object
	left := pod(plain, "vm-g4-a1", 4, "b", corev1.PodPending, of("closed", 1))
	for name, test := range map[string]struct {
		change func(*decide.VM)
		want   want
	}{
		"of a wake that failed": {change: both(owned(asleep, left), mode(v1alpha1.ModeHibernated)),
			want: want{do: decide.DeletePod, detail: "vm-g4-a1"}},
		"of a move that failed": {change: func(o *decide.VM) { o.Pods = append(o.Pods, left) },
			want: want{do: decide.DeletePod, detail: "vm-g4-a1"}},
		"it is deleted already": {change: func(o *decide.VM) {
			o.Pods = append(o.Pods, *left.DeepCopy())
			ending(&o.Pods[1])
		}, want: want{do: decide.None}},
		"of the open operation": {change: moving(nodev1.Phase_PHASE_PREPARING, func(*corev1.Pod) {}),
			want: want{do: decide.None, waits: decide.ReasonOperation}},
		"the VM came in it": {change: func(o *decide.VM) {
			of("closed", 1)(&o.Pods[0])
			o.Record.Place, o.Record.Generation = "vm-g3-a0", 2
		}, want: want{do: decide.None}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide.NextVM(world(test.change))) })
	}
}

// A pod that was deleted by force and made again under its name is not the one that the record names.
func TestPlaceTellsPodsApart(t *testing.T) {
	o := world()
	o.Record.Place = "vm-g3-a0"
	want{do: decide.None}.check(t, decide.NextVM(o))
	o.Pods[0].UID = "another"
	want{do: decide.SetGate, detail: "vm-g3-a0"}.check(t, decide.NextVM(o))
	if next := decide.NextVM(o); next.On {
		t.Error("a pod that the record does not name counts as running")
	}
}

// What a VM runs, and its addresses, are written down once they are known, and not under an operation.
func TestNoteRun(t *testing.T) {
	runs := map[string]string{"main": "m@sha256:1"}
	o := world(func(o *decide.VM) { o.Running = runs })
	next := decide.NextVM(o)
	want{do: decide.NoteRun}.check(t, next)
	if next.Images["main"] != runs["main"] {
		t.Errorf("images %v", next.Images)
	}
	o.Images = runs
	want{do: decide.None}.check(t, decide.NextVM(o))
	o.Pods[0].Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}
	next = decide.NextVM(o)
	want{do: decide.NoteRun}.check(t, next)
	if !slices.Equal(next.Addresses, []string{"10.0.0.7", "fd00::7"}) || next.Images["main"] != runs["main"] {
		t.Errorf("noted %v, %v", next.Addresses, next.Images)
	}
	if next.AddressesOf != o.Pods[0].UID {
		t.Errorf("seen in pod %q", next.AddressesOf)
	}
	o.Addresses, o.AddressesOf = next.Addresses, next.AddressesOf
	want{do: decide.None}.check(t, decide.NextVM(o))
	o = world(moving(nodev1.Phase_PHASE_PREPARING, func(*corev1.Pod) {}))
	o.Running = runs
	want{do: decide.None, waits: decide.ReasonOperation}.check(t, decide.NextVM(o))
}

// What a node says later of the addresses of a pod counts no more. A VM that keeps its addresses has those from before
// in each pod that it comes into by an operation. When it boots again it has new ones.
func TestAddressesStay(t *testing.T) {
	for name, test := range map[string]struct {
		network v1alpha1.NetworkMode
		came    bool
		seen    types.UID
		noted   string
	}{
		"the same pod":                  {network: v1alpha1.NetworkKeep, seen: "vm-g3-a0"},
		"the same pod, without keeping": {seen: "vm-g3-a0"},
		"it came, and keeps":            {network: v1alpha1.NetworkKeep, came: true, seen: "before"},
		"it came":                       {came: true, seen: "before", noted: "10.0.0.66"},
		"it boots again":                {network: v1alpha1.NetworkKeep, seen: "before", noted: "10.0.0.66"},
	} {
		runs := map[string]string{"main": "m@sha256:1"}
		o := world(func(o *decide.VM) { o.Running, o.Images = runs, runs })
		o.Object.Spec.Network, o.Addresses, o.AddressesOf = test.network, []string{"10.0.0.5"}, test.seen
		o.Pods[0].Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.66"}}
		if test.came {
			o.Pods[0].Labels[pods.LabelOperation] = "op0"
		}
		next := decide.NextVM(o)
		if noted := strings.Join(next.Addresses, ","); noted != test.noted || (next.Do == decide.NoteRun) != (noted != "") {
			t.Errorf("%s: %s notes %q, want %q", name, next.Do, noted, test.noted)
		}
	}
}

// The pod of a VM that keeps its addresses asks for those that were written down, whatever its node says by now. Any
// other pod asks for none.
func TestPodAsksForItsAddresses(t *testing.T) {
	keeps := func(o *decide.VM) {
		o.Object.Spec.Network = v1alpha1.NetworkKeep
		o.Ask = []pods.AddressAnnotation{{Name: "net/list", List: true}, {Name: "net/text"}}
		o.Addresses = []string{"10.0.0.5"}
	}
	at := func(o *decide.VM) { o.Pods[0].Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}} }
	waits := func(kind nodev1.Kind, owner *nodev1.Owner) func(*decide.VM) {
		return func(o *decide.VM) {
			op := operation(kind, nodev1.Phase_PHASE_PENDING)
			op.ByPlace, op.Source = true, owner.GetNode()
			o.Record.Owner, o.Record.Operation = owner, op
		}
	}
	for name, test := range map[string]struct {
		change     []func(*decide.VM)
		list, text string
		keep       string
	}{
		"a move": {[]func(*decide.VM){keeps, at, waits(nodev1.Kind_KIND_MIGRATE, atA)}, `["10.0.0.5"]`, "10.0.0.5",
			"keep"},
		"a wake of two addresses": {[]func(*decide.VM){keeps, func(o *decide.VM) {
			o.Addresses = []string{"10.0.0.7", "fd00::7"}
		}, waits(nodev1.Kind_KIND_WAKE, asleep)}, `["10.0.0.7","fd00::7"]`, "10.0.0.7,fd00::7", "keep"},
		"a wake": {[]func(*decide.VM){keeps, waits(nodev1.Kind_KIND_WAKE, asleep)}, `["10.0.0.5"]`, "10.0.0.5", "keep"},
		"a move of one that has other addresses then": {[]func(*decide.VM){at, waits(nodev1.Kind_KIND_MIGRATE, atA)},
			"", "", ""},
		"no address is known": {[]func(*decide.VM){keeps, func(o *decide.VM) { o.Addresses = nil },
			waits(nodev1.Kind_KIND_WAKE, asleep)}, "", "", "keep"},
	} {
		t.Run(name, func(t *testing.T) {
			o := world(test.change...)
			if o.Record.GetOwner() == asleep {
				o.Pods = nil
			}
			next := decide.Arrival(o)
			if next.Do != decide.MakePod {
				t.Fatalf("%+v", next)
			}
			got := next.Pod.Annotations
			if got["net/list"] != test.list || got["net/text"] != test.text || got["godwit.dev/network"] != test.keep {
				t.Errorf("annotations %v", got)
			}
		})
	}
	boot := world(keeps, owned(nil))
	if next := decide.NextVM(boot); next.Do != decide.MakePod || next.Pod.Annotations["net/list"] != "" ||
		next.Pod.Annotations["godwit.dev/network"] != "keep" {
		t.Errorf("a boot: %+v", next)
	}
}
