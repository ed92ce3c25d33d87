package pods

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	runtimeClass = "godwit"
	// minGrace is in seconds. A hibernate at a stop needs them.
	minGrace = 600
	// arriveSeconds is how long probes wait for a VM that arrives, where its order has no bound.
	arriveSeconds = 600
	holderWeight  = 100
	cpuLabel      = "cpu.godwit.dev/"
)

// Input is all that a pod is made of.
type Input struct {
	VM     *v1alpha1.VirtualMachine
	Set    *v1alpha1.VirtualMachineSet // that the VM may be a member of; nil: none
	Record *nodev1.Record              // with the open operation
	// Images of a VM that wakes or moves, by container, each with its digest.
	Images  map[string]string
	Node    string   // where the VM is wanted; empty: the scheduler's choice
	Holders []string // nodes that have the snapshot already
	CPU     string   // class that a VM with a state needs; empty: any
	Movable bool
	OnStop  bool  // the nodes' shims hibernate at a stop
	Grace   int64 // seconds that the class of the VM's snapshots asks for; 0: none does
	// Addresses that the VM has, or had before it slept; and how a pod asks for them.
	Addresses []string
	Ask       []AddressAnnotation
}

// Make makes the pod of a VM: the only function that does.
func Make(in Input) (*corev1.Pod, error) {
	vm, rec := in.VM, in.Record
	if err := checkName(vm, rec); err != nil {
		return nil, err
	}
	if rec != nil && !Has(vm, in.Set, rec) {
		return nil, fmt.Errorf("make a pod of VM %s with uid %s: its record is of %s: %w", RecordID(vm), vm.UID, rec.GetUid(),
			errdefs.ErrFailedPrecondition)
	}
	intent, err := IntentOf(rec)
	if err != nil {
		return nil, err
	}
	of := ""
	if intent == Boot {
		if of, err = Template(vm); err != nil {
			return nil, err
		}
	}
	template := vm.Spec.Template.DeepCopy()
	op := rec.GetOperation()
	generation := rec.GetGeneration() + 1
	if op != nil {
		generation = op.GetGeneration() + 1
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: Name(vm.Name, generation, op.GetAttempt()), Namespace: vm.Namespace,
		Labels: labels(template.Labels, in, generation, of), Annotations: annotations(template.Annotations, in, intent),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm,
			v1alpha1.GroupVersion.WithKind("VirtualMachine"))},
	}, Spec: template.Spec}
	spec := &pod.Spec
	spec.RestartPolicy, spec.NodeName = corev1.RestartPolicyNever, ""
	if spec.RuntimeClassName == nil {
		spec.RuntimeClassName = new(string)
		*spec.RuntimeClassName = runtimeClass
	}
	if spec.Hostname == "" {
		spec.Hostname = vm.Name // the guest's name stays, whatever its pod is called
	}
	grace := max(minGrace, in.Grace, deref(spec.TerminationGracePeriodSeconds))
	spec.TerminationGracePeriodSeconds = &grace
	spec.Tolerations = tolerations(spec.Tolerations)
	spec.ReadinessGates = append(spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: GateRunning})
	spec.Affinity = affinity(spec.Affinity, in, intent)
	if intent != Boot {
		if err := arrive(spec, in); err != nil {
			return nil, err
		}
	}
	return pod, nil
}

func deref(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func labels(template map[string]string, in Input, generation uint64, of string) map[string]string {
	vm, rec := in.VM, in.Record
	all := maps.Clone(template)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, LabelOperation)
	delete(all, LabelAttempt)
	delete(all, LabelTemplate)
	if of != "" {
		all[LabelTemplate] = of
	}
	all[LabelVM], all[LabelRecordUID] = vm.Name, rec.GetUid()
	all[LabelGeneration] = strconv.FormatUint(generation, 10)
	if op := rec.GetOperation(); op != nil {
		all[LabelOperation] = op.GetId()
		all[LabelAttempt] = strconv.FormatUint(uint64(op.GetAttempt()), 10)
	}
	return all
}

func annotations(template map[string]string, in Input, intent Intent) map[string]string {
	all := maps.Clone(template)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, AnnotationOnStop)
	all[AnnotationVM] = in.VM.Name // the shim puts the pod's namespace before it
	if in.OnStop && in.VM.Spec.Eviction.Strategy != v1alpha1.EvictionNone {
		all[AnnotationOnStop] = OnStopHibernate
	}
	all[annotationEvict] = strconv.FormatBool(in.Movable)
	keep(all, in, intent)
	return all
}

// tolerations keep the pod for ever on a node that is away: the VM may run there.
func tolerations(template []corev1.Toleration) []corev1.Toleration {
	away := []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
	all := slices.DeleteFunc(slices.Clone(template), func(t corev1.Toleration) bool {
		return slices.Contains(away, t.Key)
	})
	for i := range all {
		if all[i].Key == "" { // all keys: its seconds would count for those two as well
			all[i].TolerationSeconds = nil
		}
	}
	for _, key := range away {
		all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoExecute})
	}
	return all
}

// affinity adds to the template's where the pod must, may not and should go. A node is meant by its name: its label
// hostname may be another text.
func affinity(template *corev1.Affinity, in Input, intent Intent) *corev1.Affinity {
	var must corev1.NodeSelectorTerm
	if in.Node != "" {
		must.MatchFields = append(must.MatchFields, named(corev1.NodeSelectorOpIn, in.Node))
	}
	left := "" // the node that the VM leaves, or that is lost with it
	switch intent {
	case Receive:
		left = in.Record.GetOperation().GetSource()
	case Restore:
		left = in.Record.GetOwner().GetNode()
	}
	if left != "" {
		must.MatchFields = append(must.MatchFields, named(corev1.NodeSelectorOpNotIn, left))
	}
	if intent != Boot && in.CPU != "" {
		must.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: cpuLabel + in.CPU,
			Operator: corev1.NodeSelectorOpExists}}
	}
	should := intent == Restore && in.Node == "" && len(in.Holders) > 0
	bound := len(must.MatchFields)+len(must.MatchExpressions) > 0
	if !bound && !should {
		return template
	}
	if template == nil {
		template = &corev1.Affinity{}
	}
	if template.NodeAffinity == nil {
		template.NodeAffinity = &corev1.NodeAffinity{}
	}
	node := template.NodeAffinity
	if bound {
		node.RequiredDuringSchedulingIgnoredDuringExecution = and(node.RequiredDuringSchedulingIgnoredDuringExecution,
			must)
	}
	if should {
		for _, holder := range in.Holders { // a field takes one value
			node.PreferredDuringSchedulingIgnoredDuringExecution = append(node.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.PreferredSchedulingTerm{Weight: holderWeight, Preference: corev1.NodeSelectorTerm{
					MatchFields: []corev1.NodeSelectorRequirement{named(corev1.NodeSelectorOpIn, holder)}}})
		}
	}
	return template
}

// named is a requirement of the name of a node.
func named(op corev1.NodeSelectorOperator, node string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: op, Values: []string{node}}
}

// and narrows each term: terms are alternatives. Without a term nothing is narrowed yet.
func and(old *corev1.NodeSelector, must corev1.NodeSelectorTerm) *corev1.NodeSelector {
	if old == nil || len(old.NodeSelectorTerms) == 0 {
		old = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	for i := range old.NodeSelectorTerms {
		term := &old.NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, must.MatchExpressions...)
		term.MatchFields = append(term.MatchFields, must.MatchFields...)
	}
	return old
}

// arrive changes what is of a VM that has run already: its containers go on, and nothing begins anew.
func arrive(spec *corev1.PodSpec, in Input) error {
	for _, c := range spec.InitContainers { // one that restarts always is a sidecar, and runs
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			c.RestartPolicy = nil
			spec.Containers = append(spec.Containers, c)
		}
	}
	spec.InitContainers = nil
	seconds := int32(arriveSeconds)
	if ms := in.Record.GetOperation().GetTimeoutMs(); ms > 0 {
		seconds = int32(max(1, ms/1000))
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		image := in.Images[c.Name]
		if image == "" {
			return fmt.Errorf("make a pod of VM %s: the image of container %s at its snapshot is not known: %w",
				RecordID(in.VM), c.Name, errdefs.ErrFailedPrecondition)
		}
		c.Image = image
		if c.Lifecycle != nil {
			c.Lifecycle.PostStart = nil
		}
		c.StartupProbe = startup(c, seconds)
	}
	return nil
}

// startup holds the other probes back until the VM runs. A container without a probe needs none.
func startup(c *corev1.Container, seconds int32) *corev1.Probe {
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p != nil {
			return &corev1.Probe{ProbeHandler: p.ProbeHandler, PeriodSeconds: 1, FailureThreshold: seconds,
				TimeoutSeconds: max(1, p.TimeoutSeconds)}
		}
	}
	return nil
}
