//go:build integration

package authority_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
)

func clientOf(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme, err := operator.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func makes[T client.Object](t *testing.T, o T) T {
	t.Helper()
	if err := clientOf(t, server.REST()).Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func pod(name, node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "localhost/x"}}}}
}

func order(name, node string) *v1alpha1.VMSnapshotContent {
	ref := v1alpha1.NamespacedRef{Namespace: "default", Name: "x", UID: "1"}
	return &v1alpha1.VMSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.VMSnapshotContentSpec{SnapshotRef: ref, Source: v1alpha1.ContentSource{PodRef: ref, NodeName: node}}}
}

func record(name string) *v1alpha1.VMRecord {
	return &v1alpha1.VMRecord{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.VMRecordSpec{VM: v1alpha1.RecordVM{Namespace: "k8s.io", ID: name}}}
}

// patched is a change of an object, as JSON.
func patched(c client.Client, o client.Object, text string) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.Patch(ctx, o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(text)))
	}
}

func created(c client.Client, o client.Object) func(context.Context) error {
	return func(ctx context.Context) error { return c.Create(ctx, o) }
}

// allowed tries each, and wants the refusal that it names, or none.
func allowed(t *testing.T, cases map[string]error, wants map[string]string) {
	t.Helper()
	for name, err := range cases {
		want := wants[name]
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestClaimOfANodeWithALongName: such a node claims by the beginning of its name and a hash.
func TestClaimOfANodeWithALongName(t *testing.T) {
	name := strings.Repeat("a", 240)
	node := clientOf(t, as(t, authority.Account, agent(t, name)))
	claims := func(claim string) error {
		return node.Create(t.Context(), &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: claim}})
	}
	const uid = "8c1b2a3e-0000-4000-8000-000000000002"
	others := 0
	apitest.Eventually(t, "a refusal", func() (bool, error) {
		others++
		return claims(decide.ClaimName(uid, fmt.Sprint("other", others))) != nil, nil
	})
	allowed(t, map[string]error{
		"its own":                  claims(decide.ClaimName(uid, name)),
		"of another long name":     claims(decide.ClaimName(uid, strings.Repeat("b", 240))),
		"of how it begins":         claims(decide.ClaimName(uid, name[:169])),
		"of how it begins, longer": claims(decide.ClaimName(uid, name[:200])),
	}, map[string]string{"of another long name": "of its own node", "of how it begins": "of its own node",
		"of how it begins, longer": "of its own node"})
}

// TestNodeToken: with the token of its agent, a node changes the objects of its own, and of those what it has to.
func TestNodeToken(t *testing.T) {
	api := as(t, authority.Account, agent(t, "n1"))
	node, unbound := clientOf(t, api), clientOf(t, as(t, authority.Account, nil))
	n1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n2 := makes(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	own, others := makes(t, pod("own", "n1", nil)), makes(t, pod("others", "n2", nil))
	mine, theirs := makes(t, order("vmsnap-mine", "n1")), makes(t, order("vmsnap-theirs", "n2"))
	const label = `{"metadata":{"labels":{%q:"true"}}}`
	runtime, eligible := fmt.Sprintf(label, "godwit.dev/runtime"), fmt.Sprintf(label, "godwit.dev/capture-eligible")
	// A policy that has just been made counts a moment later.
	apitest.Eventually(t, "a refusal", func() (bool, error) { return patched(node, n2, runtime)(t.Context()) != nil, nil })
	ready := func(c *v1alpha1.VMSnapshotContent) error {
		c = c.DeepCopy()
		c.Status.Digest = "sha256:x"
		return node.Status().Update(t.Context(), c)
	}
	lease := func(name string) *coordination.Lease {
		return &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	}
	do := func(f func(context.Context) error) error { return f(t.Context()) }
	const uid = "8c1b2a3e-0000-4000-8000-000000000001"
	of := func(node string) string { return decide.ClaimName(uid, node) }
	makes(t, lease(of("n2")))
	holds := func(name string) error {
		l := &coordination.Lease{}
		if err := node.Get(t.Context(), types.NamespacedName{Namespace: system, Name: name}, l); err != nil {
			return err
		}
		me := "x"
		l.Spec.HolderIdentity = &me
		return node.Update(t.Context(), l)
	}
	mineClaimed := do(created(node, lease(of("n1"))))
	allowed(t, map[string]error{
		"own label":              do(patched(node, n1, runtime)),
		"label of another node":  do(patched(node, n2, runtime)),
		"another label":          do(patched(node, n1, fmt.Sprintf(label, "team"))),
		"two labels":             do(patched(node, n1, `{"metadata":{"labels":{"godwit.dev/runtime":"1","x":"y"}}}`)),
		"unschedulable":          do(patched(node, n1, `{"spec":{"unschedulable":true}}`)),
		"an annotation":          do(patched(node, n1, `{"metadata":{"annotations":{"x":"y"}}}`)),
		"own pod":                do(patched(node, own, eligible)),
		"pod of another node":    do(patched(node, others, eligible)),
		"annotation of a pod":    do(patched(node, own, `{"metadata":{"annotations":{"godwit.dev/vm":"other"}}}`)),
		"label of a pod":         do(patched(node, own, fmt.Sprintf(label, "godwit.dev/vm"))),
		"own order":              ready(mine),
		"order of another node":  ready(theirs),
		"a claim":                mineClaimed,
		"a claim, renewed":       holds(of("n1")),
		"claim of another node":  do(created(node, lease(of("n3")))),
		"claim that another has": holds(of("n2")),
		"claim of node x.n1":     do(created(node, lease(of("x.n1")))),
		"claim of no node":       do(created(node, lease("vmsnap-"+uid))),
		"the operator's lease":   do(created(node, lease("godwit-operator"))),
		"no node":                do(patched(unbound, n1, runtime)),
	}, map[string]string{
		"label of another node": "its own node", "another label": "nothing else", "two labels": "nothing else",
		"unschedulable": "nothing else", "an annotation": "nothing else", "pod of another node": "of its own node",
		"annotation of a pod": "nothing else", "label of a pod": "nothing else",
		"order of another node": "of its own node", "the operator's lease": "no other lease",
		"claim of another node": "of its own node", "claim that another has": "of its own node",
		"claim of node x.n1": "of its own node", "claim of no node": "of its own node", "no node": "bound to a pod",
	})
}

// TestRecordsPolicy: the operator alone writes records and orders, and says which VM a pod is of. One who may do
// everything in the cluster else is refused.
func TestRecordsPolicy(t *testing.T) {
	makes(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "somebody"}})
	makes(t, &rbac.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "somebody"},
		RoleRef:  rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: system, Name: "somebody"}}})
	somebody, op := clientOf(t, as(t, "somebody", nil)), clientOf(t, as(t, controller, nil))
	rec := makes(t, record("default.one"))
	apitest.Eventually(t, "a refusal", func() (bool, error) {
		err := somebody.Create(t.Context(), record("default.policy"))
		return err != nil && strings.Contains(err.Error(), "operator alone"), err
	})
	do := func(f func(context.Context) error) error { return f(t.Context()) }
	operation := map[string]string{"godwit.dev/operation": "1"}
	allowed(t, map[string]error{
		"a record":                do(created(somebody, record("default.two"))),
		"a change of one":         do(patched(somebody, rec, `{"summary":{"owner":"b"}}`)),
		"the end of one":          somebody.Delete(t.Context(), rec.DeepCopy()),
		"an order":                do(created(somebody, order("vmsnap-two", "n1"))),
		"a pod":                   do(created(somebody, pod("plain", "", map[string]string{"app": "x"}))),
		"a pod of an operation":   do(created(somebody, pod("forged", "", operation))),
		"a pod of a template":     do(created(somebody, pod("drifted", "", map[string]string{"godwit.dev/template": "1"}))),
		"the operator's record":   do(created(op, record("default.three"))),
		"the operator's order":    do(created(op, order("vmsnap-three", "n1"))),
		"the operator's pod":      do(created(op, pod("real", "", operation))),
		"a pod's label taken off": do(patched(somebody, pod("real", "", nil), `{"metadata":{"labels":null}}`)),
	}, map[string]string{"a record": "operator alone", "a change of one": "operator alone",
		"the end of one": "operator alone", "an order": "operator alone", "a pod of an operation": "operator alone",
		"a pod of a template":     "operator alone",
		"a pod's label taken off": "operator alone"})
}

// TestReplacesPolicy: a kubelet, or a controller that may change Nodes, does not say that a machine runs nothing any
// more. Who may fence nodes, and who may do everything, does.
func TestReplacesPolicy(t *testing.T) {
	rights := func(name string, rules ...rbac.PolicyRule) client.Client {
		makes(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}})
		makes(t, &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
		makes(t, &rbac.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:  rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: system, Name: name}}})
		return clientOf(t, as(t, name, nil))
	}
	changes := rbac.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"},
		Verbs: []string{"get", "create", "patch", "update"}}
	kubelet := rights("like-a-kubelet", changes)
	fencer := rights("fencer", changes, rbac.PolicyRule{APIGroups: []string{"godwit.dev"}, Resources: []string{"nodes"},
		Verbs: []string{"fence"}})
	all := rights("all-rights", rbac.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	n := makes(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "replaced"}})
	label := func(value string) string {
		return fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, authority.LabelReplaces, value)
	}
	apitest.Eventually(t, "a refusal", func() (bool, error) {
		err := patched(kubelet, n, label("early"))(t.Context())
		return err != nil && strings.Contains(err.Error(), "may fence nodes"), nil
	})
	do := func(f func(context.Context) error) error { return f(t.Context()) }
	status := func(ctx context.Context) error {
		return kubelet.Status().Patch(ctx, n.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(label("3"))))
	}
	born := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "born",
		Labels: map[string]string{authority.LabelReplaces: "4"}}}
	for _, c := range []struct {
		name, want string
		err        error
	}{
		{"who may fence", "", do(patched(fencer, n, label("1")))},
		{"who may do everything", "", do(patched(all, n, label("2")))},
		{"a kubelet", "may fence nodes", do(patched(kubelet, n, label("3")))},
		{"a kubelet, with its status", "may fence nodes", do(status)},
		{"a kubelet that makes its Node", "may fence nodes", do(created(kubelet, born))},
		{"a kubelet, of a labeled Node", "", do(patched(kubelet, n, `{"metadata":{"labels":{"x":"y"}}}`))},
	} {
		allowed(t, map[string]error{c.name: c.err}, map[string]string{c.name: c.want})
	}
}

// TestUninstall: what is installed is not deleted while a VM runs, and can be while all sleep.
func TestUninstall(t *testing.T) {
	packaging := filepath.Join("..", "..", "..", "packaging", "kubernetes")
	if out, err := server.Kubectl(t.Context(), "", "apply", "-k", filepath.Join(packaging, "system")); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	admin := clientOf(t, server.REST())
	owner := func(name string) {
		t.Helper()
		change := fmt.Sprintf(`{"summary":{"owner":%q}}`, name)
		if err := patched(admin, record("default.runs"), change)(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	makes(t, record("default.runs"))
	owner("n1")
	remove := func() string {
		out, err := server.Kubectl(t.Context(), "", "delete", "-k", filepath.Join(packaging, "system"), "--dry-run=server")
		return fmt.Sprint(out, err)
	}
	one := func() error {
		return admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, client.DryRunAll)
	}
	apitest.Eventually(t, "a refusal", func() (bool, error) { return one() != nil, nil })
	said := remove()
	if !strings.Contains(said, "VM default.runs runs on node n1") {
		t.Errorf("while a VM runs: %s", said)
	}
	for line := range strings.Lines(said) {
		if strings.Contains(line, "deleted (server dry run)") {
			t.Errorf("while a VM runs: %s", line)
		}
	}
	owner("sha256:0")
	apitest.Eventually(t, "a refusal of what sleeps", func() (bool, error) {
		err := one()
		return err != nil && strings.Contains(err.Error(), "VM default.runs sleeps"), err
	})
	if err := admin.DeleteAllOf(t.Context(), &v1alpha1.VMRecord{}); err != nil { // also those of other tests
		t.Fatal(err)
	}
	apitest.Eventually(t, "a removal", func() (bool, error) { err := one(); return err == nil, err })
	said = remove()
	if !strings.Contains(said, `daemonset.apps "godwit-node"`) || strings.Contains(said, "denied") {
		t.Errorf("without a record: %s", said)
	}
}
