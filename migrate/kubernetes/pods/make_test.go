package pods_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
	apirecord "godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
)

const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

func pointer[T any](v T) *T { return &v }

// machine has a template with all that a pod of ours changes.
func machine() *v1alpha1.VirtualMachine {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path,
			Port: intstr.FromInt32(80)}}, PeriodSeconds: 10}
	}
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "u1"}}
	vm.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"app": "x", pods.LabelVM: "other", pods.LabelOperation: "forged",
				pods.LabelGeneration: "99"},
			Annotations: map[string]string{"note": "y", pods.AnnotationVM: "other.vm", pods.AnnotationOnStop: "no"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, NodeName: "forced",
			InitContainers: []corev1.Container{{Name: "init", Image: "i"},
				{Name: "side", Image: "s:1", RestartPolicy: pointer(corev1.ContainerRestartPolicyAlways)}},
			Containers: []corev1.Container{{Name: "main", Image: "m:1", LivenessProbe: probe("/live"),
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}, PreStop: &corev1.LifecycleHandler{}}}},
			Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: pointer(int64(300))}, {Key: "gpu"}},
		},
	}
	return vm
}

func record(owner *nodev1.Owner, generation uint64, op *nodev1.Operation) *nodev1.Record {
	return &nodev1.Record{Vm: &nodev1.VM{Namespace: "k8s.io", Id: "ns.vm"}, Uid: "u1", Owner: owner,
		Generation: generation, Operation: op}
}

func operation(kind nodev1.Kind, attempt uint32, generation uint64) *nodev1.Operation {
	return &nodev1.Operation{Id: "op1", Kind: kind, Attempt: attempt, Generation: generation,
		Phase: nodev1.Phase_PHASE_PENDING, Digest: digest, TimeoutMs: 90_000}
}

// member has a VM be one of a set, without the label that anybody may take off.
func member(vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachineSet {
	set := &v1alpha1.VirtualMachineSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "ns", UID: "s1"},
		Spec: v1alpha1.VirtualMachineSetSpec{Members: []v1alpha1.SetMember{{Name: "main"}, {Name: "worker"}}}}
	vm.Name = "set-worker"
	vm.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
		v1alpha1.GroupVersion.WithKind("VirtualMachineSet"))}
	return set
}

var images = map[string]string{"main": "m@" + digest, "side": "s@" + digest}

// Each way in which a pod of a VM is made, and what it begins from. A VM whose state is somewhere has no way to a boot.
func TestIntentOnEveryCreate(t *testing.T) {
	asleep, at := &nodev1.Owner{Digest: digest}, &nodev1.Owner{Node: "a"}
	ofSet := func(owner *nodev1.Owner, op *nodev1.Operation) *nodev1.Record {
		rec := record(owner, 3, op)
		rec.Uid, rec.Vm.Id = "s1.worker", "ns.set-worker"
		return rec
	}
	lost := record(nil, 3, nil)
	lost.Lost = digest
	for name, test := range map[string]struct {
		rec    *nodev1.Record
		set    bool
		intent pods.Intent // empty: refused
		pod    string
	}{
		"boot":              {rec: record(nil, 0, nil), intent: pods.Boot, pod: "vm-g1-a0"},
		"boot after an end": {rec: record(nil, 7, nil), intent: pods.Boot, pod: "vm-g8-a0"},
		"boot of a member":  {rec: ofSet(nil, nil), set: true, intent: pods.Boot, pod: "set-worker-g4-a0"},
		"wake": {rec: record(asleep, 3, operation(nodev1.Kind_KIND_WAKE, 1, 3)),
			intent: pods.Restore, pod: "vm-g4-a1"},
		"wake of a member": {rec: ofSet(asleep, operation(nodev1.Kind_KIND_WAKE, 1, 3)), set: true,
			intent: pods.Restore, pod: "set-worker-g4-a1"},
		"move": {rec: record(at, 3, operation(nodev1.Kind_KIND_MIGRATE, 2, 3)),
			intent: pods.Receive, pod: "vm-g4-a2"},
		"move of a member": {rec: ofSet(at, operation(nodev1.Kind_KIND_MIGRATE, 2, 3)), set: true,
			intent: pods.Receive, pod: "set-worker-g4-a2"},
		"no record":                  {},
		"asleep":                     {rec: record(asleep, 3, nil)},
		"asleep, a member":           {rec: ofSet(asleep, nil), set: true},
		"a node has it":              {rec: record(at, 3, nil)},
		"lost":                       {rec: lost},
		"it goes to sleep":           {rec: record(at, 3, operation(nodev1.Kind_KIND_HIBERNATE, 1, 3))},
		"a checkpoint":               {rec: record(at, 3, operation(nodev1.Kind_KIND_CHECKPOINT, 1, 3))},
		"the record is another VM's": {rec: record(nil, 0, nil), set: true},
		"the set is another one":     {rec: ofSet(nil, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			vm := machine()
			var set *v1alpha1.VirtualMachineSet
			if test.set {
				set = member(vm)
			}
			pod, err := pods.Make(pods.Input{VM: vm, Set: set, Record: test.rec, Images: images})
			if test.intent == "" {
				if !errdefs.IsFailedPrecondition(err) {
					t.Fatalf("made %v: %v", pod, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := pods.IntentOf(test.rec); got != test.intent || pod.Name != test.pod {
				t.Errorf("%s has intent %s", pod.Name, got)
			}
			carries := pod.Labels[pods.LabelOperation] == "op1" && pod.Labels[pods.LabelAttempt] != "" &&
				len(pod.Spec.InitContainers) == 0 && strings.HasSuffix(pod.Spec.Containers[0].Image, digest)
			if carries != (test.intent != pods.Boot) {
				t.Errorf("labels %v, containers %v", pod.Labels, pod.Spec.Containers)
			}
			if pod.Labels[pods.LabelRecordUID] != test.rec.GetUid() || !metav1.IsControlledBy(pod, vm) {
				t.Errorf("labels %v, owners %v", pod.Labels, pod.OwnerReferences)
			}
			named := apirecord.PodVM(map[string]string{apirecord.PodNamespace: pod.Namespace,
				spec.AnnotationVM: pod.Annotations[pods.AnnotationVM]}) // as a shim does
			if pod.Labels[pods.LabelVM] != vm.Name || named != pods.RecordID(vm) {
				t.Errorf("the template names the VM: %v, %v", pod.Labels, pod.Annotations)
			}
		})
	}
}

// What each pod has, whatever its template says.
func TestFieldsOfEachPod(t *testing.T) {
	vm := machine()
	pod, err := pods.Make(pods.Input{VM: vm, Record: record(nil, 0, nil), Movable: true, OnStop: true})
	if err != nil {
		t.Fatal(err)
	}
	s := pod.Spec
	if s.RestartPolicy != corev1.RestartPolicyNever || *s.RuntimeClassName != "godwit" || s.NodeName != "" ||
		*s.TerminationGracePeriodSeconds != 600 || s.Hostname != "vm" {
		t.Errorf("%s, class %s, node %q, grace %d, host %q", s.RestartPolicy, *s.RuntimeClassName, s.NodeName,
			*s.TerminationGracePeriodSeconds, s.Hostname)
	}
	if !reflect.DeepEqual(s.ReadinessGates, []corev1.PodReadinessGate{{ConditionType: "godwit.dev/running"}}) {
		t.Errorf("gates %v", s.ReadinessGates)
	}
	if pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] != "true" ||
		pod.Annotations[pods.AnnotationOnStop] != "hibernate" || pod.Annotations["note"] != "y" {
		t.Errorf("annotations %v", pod.Annotations)
	}
	if pod.Labels["app"] != "x" || pod.Labels[pods.LabelOperation] != "" || pod.Labels[pods.LabelGeneration] != "1" {
		t.Errorf("labels %v", pod.Labels)
	}
	if len(s.InitContainers) != 2 || s.Containers[0].Lifecycle.PostStart == nil || s.Containers[0].StartupProbe != nil {
		t.Error("a boot has not all of its template")
	}
	vm.Spec.Eviction.Strategy = v1alpha1.EvictionNone
	vm.Spec.Template.Spec.TerminationGracePeriodSeconds = pointer(int64(900))
	pod, err = pods.Make(pods.Input{VM: vm, Record: record(nil, 0, nil), OnStop: true})
	if err != nil || *pod.Spec.TerminationGracePeriodSeconds != 900 || pod.Annotations[pods.AnnotationOnStop] != "" {
		t.Errorf("%v: %v", pod, err)
	}
	for class, want := range map[int64]int64{0: 900, 30: 900, 901: 901, 86400: 86400} { // what is longer counts
		pod, err = pods.Make(pods.Input{VM: vm, Record: record(nil, 0, nil), Grace: class})
		if err != nil || *pod.Spec.TerminationGracePeriodSeconds != want {
			t.Errorf("class %d: %v: %v", class, pod.Spec.TerminationGracePeriodSeconds, err)
		}
	}
}

// A node that is away keeps its VMs for ever: it may run them.
func TestTolerateAwayNodesForEver(t *testing.T) {
	vm := machine()
	vm.Spec.Template.Spec.Tolerations = append(vm.Spec.Template.Spec.Tolerations,
		corev1.Toleration{Operator: corev1.TolerationOpExists, TolerationSeconds: pointer(int64(5))})
	pod, err := pods.Make(pods.Input{VM: vm, Record: record(nil, 0, nil)})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, toleration := range pod.Spec.Tolerations {
		found[toleration.Key]++
		if toleration.TolerationSeconds != nil {
			t.Errorf("%v ends", toleration)
		}
	}
	if found[corev1.TaintNodeNotReady] != 1 || found[corev1.TaintNodeUnreachable] != 1 || found["gpu"] != 1 {
		t.Errorf("tolerations %v", pod.Spec.Tolerations)
	}
}

// What a VM that arrives has already done is not done again, and nothing judges it before it runs.
func TestArrivesAsItWas(t *testing.T) {
	pod, err := pods.Make(pods.Input{VM: machine(), Record: record(&nodev1.Owner{Digest: digest}, 3,
		operation(nodev1.Kind_KIND_WAKE, 1, 3)), Images: images})
	if err != nil {
		t.Fatal(err)
	}
	all := pod.Spec.Containers
	if len(all) != 2 || all[1].Name != "side" || all[1].RestartPolicy != nil || all[1].StartupProbe != nil {
		t.Fatalf("containers %v", all)
	}
	main := all[0]
	if main.Lifecycle.PostStart != nil || main.Lifecycle.PreStop == nil || main.Image != images["main"] {
		t.Errorf("main is %v", main)
	}
	if p := main.StartupProbe; p == nil || p.PeriodSeconds != 1 || p.FailureThreshold != 90 || p.HTTPGet.Path != "/live" {
		t.Errorf("startup probe %v", p)
	}
	_, err = pods.Make(pods.Input{VM: machine(), Record: record(&nodev1.Owner{Digest: digest}, 3,
		operation(nodev1.Kind_KIND_WAKE, 1, 3)), Images: map[string]string{"main": "m@" + digest}})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "side") {
		t.Errorf("an image that is not known: %v", err)
	}
}

func terms(pod *corev1.Pod) (all []string) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	if required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for _, term := range required.NodeSelectorTerms {
			var said []string
			for _, e := range slices.Concat(term.MatchFields, term.MatchExpressions) {
				said = append(said, e.Key+" "+string(e.Operator)+" "+strings.Join(e.Values, "|"))
			}
			all = append(all, strings.Join(said, ", "))
		}
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		for _, of := range slices.Concat(term.Preference.MatchFields, term.Preference.MatchExpressions) {
			all = append(all, "rather "+of.Key+" "+strings.Join(of.Values, "|"))
		}
	}
	return all
}

// A wanted node is asked of the scheduler; nothing is bound by hand.
func TestAffinity(t *testing.T) {
	const host = "metadata.name" // the label hostname may be another text
	wake := record(&nodev1.Owner{Digest: digest}, 3, operation(nodev1.Kind_KIND_WAKE, 1, 3))
	move := record(&nodev1.Owner{Node: "a"}, 3, operation(nodev1.Kind_KIND_MIGRATE, 1, 3))
	move.Operation.Source = "a"
	in := func(zone string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "In",
			Values: []string{zone}}}}
	}
	zone := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{in("1"), in("2")}}}}
	for name, test := range map[string]struct {
		in       pods.Input
		template *corev1.Affinity
		want     []string
	}{
		"boot":           {in: pods.Input{Record: record(nil, 0, nil), Holders: []string{"c"}}},
		"boot on a node": {in: pods.Input{Record: record(nil, 0, nil), Node: "b"}, want: []string{host + " In b"}},
		"wake":           {in: pods.Input{Record: wake}},
		"wake, holders": {in: pods.Input{Record: wake, Holders: []string{"b", "c"}},
			want: []string{"rather " + host + " b", "rather " + host + " c"}},
		"wake on a node": {in: pods.Input{Record: wake, Node: "b", Holders: []string{"c"}, CPU: "x"},
			want: []string{host + " In b, cpu.godwit.dev/x Exists "}},
		"move": {in: pods.Input{Record: move}, want: []string{host + " NotIn a"}},
		"each alternative of the template": {in: pods.Input{Record: move, Node: "b"}, template: zone,
			want: []string{host + " In b, " + host + " NotIn a, zone In 1",
				host + " In b, " + host + " NotIn a, zone In 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.in.VM, test.in.Images = machine(), images
			test.in.VM.Spec.Template.Spec.Affinity = test.template
			pod, err := pods.Make(test.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := terms(pod); !slices.Equal(got, test.want) || pod.Spec.NodeName != "" {
				t.Errorf("affinity %q, want %q", got, test.want)
			}
			if test.want == nil && pod.Spec.Affinity != nil {
				t.Errorf("affinity of ours: %v", pod.Spec.Affinity)
			}
		})
	}
}

// A name that is no host's name is refused, and not cut. So is a uid that is no label: the API server has no such pod.
func TestNameOfAVM(t *testing.T) {
	long, member := record(nil, 0, nil), machine()
	long.Uid, long.Vm.Id = strings.Repeat("u", 59)+".main", "ns.set-main"
	member.Name, member.Status.RecordUID = "set-main", long.GetUid()
	if _, err := pods.Make(pods.Input{VM: member, Record: long}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("made: %v", err)
	}
	vm := machine()
	vm.Name = strings.Repeat("x", 64)
	if _, err := pods.Make(pods.Input{VM: vm, Record: record(nil, 0, nil)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("made: %v", err)
	}
}
