package decide_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var teamA = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}

func classOf(name string, change ...func(*v1alpha1.VMSnapshotClass)) *v1alpha1.VMSnapshotClass {
	keep := int32(3)
	c := &v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)},
		Spec: v1alpha1.VMSnapshotClassSpec{Repository: "reg.example/" + name, AllowedNamespaces: teamA.DeepCopy(),
			Retention: v1alpha1.Retention{Keep: &keep}}}
	for _, f := range change {
		f(c)
	}
	return c
}

// hasClass is a class that may be used.
func hasClass(change ...func(*decide.Class)) decide.Class {
	c := decide.Class{Field: "spec.className", Name: "gold", Object: classOf("gold"),
		Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "a"}}}}
	for _, f := range change {
		f(&c)
	}
	return c
}

// noSecret is what is said where the first Secret of a class does not exist.
func noSecret(c *v1alpha1.VMSnapshotClass) string {
	s := decide.SecretsOf(c, decide.AllKeys)[0]
	return decide.NoSecret(c, s, s.Missing())
}

// What stands against a class is told with the field, the class, and who mends it. It is looked at again, and nothing
// has failed: a VMSnapshot waits before its work order, a VirtualMachine before its record.
func TestClass(t *testing.T) {
	ref := &v1alpha1.SecretRef{Namespace: "godwit-system", Name: "s"}
	spec := func(f func(*v1alpha1.VMSnapshotClassSpec)) func(*decide.Class) {
		return func(c *decide.Class) { f(&c.Object.Spec) }
	}
	grace, none := int32(60), int32(0)
	for name, test := range map[string]struct {
		change func(*decide.Class)
		waits  decide.Reason
		says   string
	}{
		"it may be used": {func(*decide.Class) {}, "", ""},
		"no such class": {func(c *decide.Class) { c.Object = nil }, decide.ReasonClassNotFound,
			"spec.className: there is no VMSnapshotClass gold"},
		"no namespace may": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.AllowedNamespaces = nil }),
			decide.ReasonClassNotAllowed, "spec.allowedNamespaces"},
		"each namespace may": {spec(func(s *v1alpha1.VMSnapshotClassSpec) {
			s.AllowedNamespaces = &metav1.LabelSelector{}
		}), "", ""},
		"another team's": {func(c *decide.Class) { c.Namespace.Labels["team"] = "b" }, decide.ReasonClassNotAllowed,
			"labels of the namespace"},
		"a selector that is none": {spec(func(s *v1alpha1.VMSnapshotClassSpec) {
			s.AllowedNamespaces.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Is"}}
		}), decide.ReasonClassNotAllowed, "spec.allowedNamespaces"},
		"the namespace is gone": {func(c *decide.Class) { c.Namespace = nil }, decide.ReasonClassNotAllowed, "gold"},
		"a path of before": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.Repository = "reg.example/a/" }),
			decide.ReasonClassUnsupported, "spec.repository \"reg.example/a/\""},
		"a login": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.PullSecretRef = ref }), "", ""},
		"a login that there is not": {func(c *decide.Class) {
			c.Object.Spec.PullSecretRef = ref
			c.NoSecret = noSecret(c.Object)
		}, decide.ReasonClassSecret, "VMSnapshotClass gold has spec.pullSecretRef: Secret godwit-system/s does not exist"},
		"a key to seal": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.SealSecretRef = ref }), "", ""},
		"a key to sign": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.SignSecretRef = ref }), "", ""},
		"a key that there is not": {func(c *decide.Class) {
			c.Object.Spec.SealSecretRef = ref
			c.NoSecret = noSecret(c.Object)
		}, decide.ReasonClassSecret, "VMSnapshotClass gold has spec.sealSecretRef: Secret godwit-system/s does not exist"},
		"another class of its repository": {func(c *decide.Class) {
			c.All = []v1alpha1.VMSnapshotClass{*c.Object, rival("silver", c.Object, nil)}
		}, "", ""},
		"another one that seals": {func(c *decide.Class) {
			c.All = []v1alpha1.VMSnapshotClass{*c.Object, rival("silver", c.Object, ref)}
		}, decide.ReasonClassUnsupported, "VMSnapshotClasses gold and silver have one spec.repository"},
		"another one that does not": {func(c *decide.Class) {
			c.Object.Spec.SignSecretRef = ref
			c.All = []v1alpha1.VMSnapshotClass{*c.Object, rival("silver", c.Object, nil)}
		}, decide.ReasonClassUnsupported, "VMSnapshotClasses gold and silver have one spec.repository"},
		"another one with another key": {func(c *decide.Class) {
			c.Object.Spec.SealSecretRef = ref
			c.All = []v1alpha1.VMSnapshotClass{rival("silver", c.Object, &v1alpha1.SecretRef{Namespace: "n", Name: "s"})}
		}, decide.ReasonClassUnsupported, "VMSnapshotClasses gold and silver have one spec.repository"},
		"another one with its keys": {func(c *decide.Class) {
			c.Object.Spec.SealSecretRef = ref
			c.All = []v1alpha1.VMSnapshotClass{*c.Object, rival("silver", c.Object, ref.DeepCopy())}
		}, "", ""},
		"a grace": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.MinGraceSeconds = &grace }), "", ""},
		"no time": {spec(func(s *v1alpha1.VMSnapshotClassSpec) { s.MinGraceSeconds = &none }),
			decide.ReasonClassUnsupported, "spec.minGraceSeconds 0, which is not 30 to 86400"},
	} {
		t.Run(name, func(t *testing.T) {
			snap, vm := snapshotWorld(), world(func(o *decide.VM) { o.Record, o.Pods = nil, nil })
			snap.Class, vm.Class = hasClass(test.change), hasClass(test.change)
			for _, next := range []decide.Action{decide.NextSnapshot(snap), decide.NextVM(vm)} {
				if next.Waits != test.waits || next.Refused || !strings.Contains(next.Message, test.says) ||
					test.waits != "" && (next.Do != decide.None || next.After == 0 || !decide.OfClass(next.Waits)) {
					t.Errorf("%+v", next)
				}
				if c := next.Content; test.waits == "" && c != nil && c.Spec.Repository != "reg.example/gold" {
					t.Errorf("the work order says %q", c.Spec.Repository)
				}
				if next.Do == decide.EnsureRecord && (next.Class.Name != "gold" || decide.Keep(next.Class) != 3) {
					t.Errorf("the record is made of class %v", next.Class)
				}
			}
		})
	}
}

// rival is another team's class with the same repository.
func rival(name string, of *v1alpha1.VMSnapshotClass, seals *v1alpha1.SecretRef) v1alpha1.VMSnapshotClass {
	c := classOf(name)
	c.Spec.Repository, c.Spec.AllowedNamespaces, c.Spec.SealSecretRef = of.Spec.Repository, nil, seals
	return *c
}

// A work order says whether its snapshot is sealed and signed: as its class does, and without one as the record does.
// Where the record has a word of that place, the class may have no other.
func TestOrderSaysThatItIsSealed(t *testing.T) {
	seals := func(c *decide.Class) { c.Object.Spec.SealSecretRef = &v1alpha1.SecretRef{Namespace: "n", Name: "s"} }
	at := func(prefix string, sealed bool) *nodev1.Record {
		rec := record(atA, 3, nil)
		rec.Prefix, rec.Sealed = prefix, sealed
		return rec
	}
	const gold = "reg.example/gold"
	for name, test := range map[string]struct {
		class  decide.Class
		rec    *nodev1.Record
		waits  decide.Reason
		sealed bool
	}{
		"its class does":                    {hasClass(seals), at("r/p", false), "", true},
		"its class does not":                {hasClass(), at("r/p", true), "", false},
		"no class, and its record does":     {decide.Class{}, at("r/p", true), "", true},
		"no class, and its record does not": {decide.Class{}, at("r/p", false), "", false},
		"one place and one word":            {hasClass(seals), at(gold, true), "", true},
		"its record does not there":         {hasClass(seals), at(gold, false), decide.ReasonClassUnsupported, false},
		"its record alone does there":       {hasClass(), at(gold, true), decide.ReasonClassUnsupported, false},
	} {
		o := snapshotWorld()
		o.Class, o.Record = test.class, test.rec
		next := decide.NextSnapshot(o)
		if next.Waits != test.waits || (next.Do == decide.MakeContent) != (test.waits == "") || next.Refused ||
			test.waits != "" && next.After == 0 {
			t.Errorf("%s: %+v", name, next)
		}
		if c := next.Content; c != nil && (c.Spec.Sealed != test.sealed || c.Spec.Signed) {
			t.Errorf("%s: sealed %t, signed %t", name, c.Spec.Sealed, c.Spec.Signed)
		}
	}
}

// What waits for its class begins once that is mended, and a status says why until then.
func TestClassIsMended(t *testing.T) {
	o := snapshotWorld()
	o.Class = hasClass(func(c *decide.Class) { c.Object = nil })
	next := decide.NextSnapshot(o)
	o.Object.Status = decide.SnapshotStatus(o, next)
	if c := o.Object.Status.Conditions; len(c) != 1 || c[0].Reason != string(decide.ReasonClassNotFound) {
		t.Errorf("conditions %v", c)
	}
	o.Class = hasClass()
	if next := decide.NextSnapshot(o); next.Do != decide.MakeContent {
		t.Errorf("%+v", next)
	}
	vm := world(func(o *decide.VM) { o.Record, o.Pods = nil, nil })
	vm.Class = hasClass(func(c *decide.Class) { c.Object = nil })
	status := decide.VMStatus(vm, decide.NextVM(vm))
	found := false
	for _, c := range status.Conditions {
		found = found || c.Reason == string(decide.ReasonClassNotFound)
	}
	if !found || status.Phase != v1alpha1.VMPending {
		t.Errorf("phase %s, conditions %v", status.Phase, status.Conditions)
	}
}

// The default class is the newest one that allows the namespace.
func TestDefaultClass(t *testing.T) {
	is := func(c *v1alpha1.VMSnapshotClass) { c.Annotations = map[string]string{decide.AnnotationDefault: "true"} }
	old := func(c *v1alpha1.VMSnapshotClass) { c.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }
	others := func(c *v1alpha1.VMSnapshotClass) { c.Spec.AllowedNamespaces.MatchLabels["team"] = "b" }
	no := func(c *v1alpha1.VMSnapshotClass) { c.Annotations[decide.AnnotationDefault] = "false" }
	for want, all := range map[string][]v1alpha1.VMSnapshotClass{
		"":  {*classOf("a"), *classOf("b", is, others), *classOf("c", is, no)},
		"a": {*classOf("a", is)},
		"b": {*classOf("a", is, old), *classOf("b", is), *classOf("c", is, others)},
		"c": {*classOf("d", is), *classOf("c", is)},
	} {
		got := ""
		if c := decide.Default(all, hasClass().Namespace); c != nil {
			got = c.Name
		}
		if got != want {
			t.Errorf("the default is %q, want %q", got, want)
		}
	}
}

// A controller takes a checkpoint elsewhere for a work order of that node, that VM and that place alone.
func TestOrderOfACheckpoint(t *testing.T) {
	rec, op := record(atA, 3, nil), &nodev1.Operation{Id: "s1", Prefix: "reg.example/gold"}
	for name, test := range map[string]struct {
		node   string
		change func(*v1alpha1.VMSnapshotContent)
		want   bool
	}{
		"ordered":           {"a", func(*v1alpha1.VMSnapshotContent) {}, true},
		"of another node":   {"b", func(*v1alpha1.VMSnapshotContent) {}, false},
		"another place":     {"a", func(c *v1alpha1.VMSnapshotContent) { c.Spec.Repository = "reg.example/silver" }, false},
		"no place":          {"a", func(c *v1alpha1.VMSnapshotContent) { c.Spec.Repository = "" }, false},
		"another VM":        {"a", func(c *v1alpha1.VMSnapshotContent) { c.Labels["godwit.dev/vm"] = "other" }, false},
		"another life":      {"a", func(c *v1alpha1.VMSnapshotContent) { c.Labels["godwit.dev/record-uid"] = "u2" }, false},
		"another namespace": {"a", func(c *v1alpha1.VMSnapshotContent) { c.Spec.Source.PodRef.Namespace = "other" }, false},
		"another snapshot":  {"a", func(c *v1alpha1.VMSnapshotContent) { c.Spec.SnapshotRef.UID = "s2" }, false},
		"being deleted":     {"a", gone, false},
	} {
		o := snapshotWorld()
		o.Class = hasClass()
		c := decide.NextSnapshot(o).Content
		test.change(c)
		if got := decide.Orders(c, rec, op, test.node); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The grace of a VM's next pod is that of the class that it names, or of those to which its snapshots go. What allows
// its namespace counts before what does not. A class of another place has no say.
func TestGrace(t *testing.T) {
	ns := hasClass().Namespace
	of := func(seconds int32, change ...func(*v1alpha1.VMSnapshotClass)) v1alpha1.VMSnapshotClass {
		return *classOf("gold", append(change, func(c *v1alpha1.VMSnapshotClass) { c.Spec.MinGraceSeconds = &seconds })...)
	}
	at := func(repository string) func(*v1alpha1.VMSnapshotClass) {
		return func(c *v1alpha1.VMSnapshotClass) { c.Spec.Repository = repository }
	}
	others := func(c *v1alpha1.VMSnapshotClass) { c.Spec.AllowedNamespaces.MatchLabels["team"] = "b" }
	for name, test := range map[string]struct {
		prefix string
		all    []v1alpha1.VMSnapshotClass
		want   int64
	}{
		"no class":                    {"reg.example/gold", nil, 0},
		"no place was given":          {"", []v1alpha1.VMSnapshotClass{of(900, at(""))}, 0},
		"its class":                   {"reg.example/gold", []v1alpha1.VMSnapshotClass{of(900)}, 900},
		"a class of another place":    {"reg.example/gold", []v1alpha1.VMSnapshotClass{of(900, at("reg.example/x"))}, 0},
		"a class without a grace":     {"reg.example/gold", []v1alpha1.VMSnapshotClass{*classOf("gold")}, 0},
		"the longest of two":          {"reg.example/gold", []v1alpha1.VMSnapshotClass{of(900), of(1800), of(60)}, 1800},
		"another team's has no say":   {"reg.example/gold", []v1alpha1.VMSnapshotClass{of(900), of(1800, others)}, 900},
		"none allows it any more":     {"reg.example/gold", []v1alpha1.VMSnapshotClass{of(900, others)}, 900},
		"what no schema would accept": {"reg.example/gold", []v1alpha1.VMSnapshotClass{of(1 << 30), of(-1)}, 0},
	} {
		if got := decide.Grace(test.all, test.prefix, ns); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
