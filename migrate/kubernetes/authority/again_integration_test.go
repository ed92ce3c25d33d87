//go:build integration

package authority_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A Node is made again under its name, on another machine with an empty disk. The first machine may still run a VM. The
// new one gets no certificate: so it cannot say that there is no such VM. Its taints do not vouch
// for the first machine; a label with that one's uid does. Once the records name no VM there, it is the node.
func TestNodeMadeAgain(t *testing.T) {
	const node = "again"
	api := as(t, controller, nil)
	ca, err := authority.Open(t.Context(), api, system)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(operate(t, api, ca))
	records, err := store.Open(server.REST(), system)
	if err != nil {
		t.Fatal(err)
	}
	first := agent(t, node)
	own := certificate(t, as(t, authority.Account, first), node)
	if got, err := own.Ensure(t.Context(), time.Now()); err != nil || !got {
		t.Fatalf("the first machine: %v %v", got, err)
	}
	vm := &nodev1.VM{Namespace: store.Kubernetes, Id: "default.again"}
	rec, err := records.Apply(t.Context(), vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "u", Generation: 1,
		Owner: &nodev1.Owner{Node: node}}})
	if err != nil {
		t.Fatal(err)
	}
	before, err := records.Machine(t.Context(), node)
	if err != nil || before == "" {
		t.Fatalf("the first machine is %q: %v", before, err)
	}
	second := madeAgain(t, first)
	ensure := func() error {
		_, err := certificate(t, as(t, authority.Account, second), node).Ensure(t.Context(), time.Now())
		return err
	}
	refused := func() {
		t.Helper()
		if err := ensure(); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "was made again") ||
			!strings.Contains(err.Error(), authority.LabelReplaces+"="+before) {
			t.Errorf("the second machine: %v", err)
		}
	}
	refused()
	fenced := fencedBy(t, records, node)
	fenced("a new Node says nothing", `{}`, false)
	fenced("its taint is of itself",
		`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`, false)
	fenced("a label of another uid", `{"metadata":{"labels":{"`+authority.LabelReplaces+`":"x"}}}`, false)
	fenced("a label of the first one's uid", `{"metadata":{"labels":{"`+authority.LabelReplaces+`":"`+before+`"}}}`, true)
	refused() // the records still name the VM there
	if _, err := records.Apply(t.Context(), vm, rec.GetVersion(), transition.Change{}); err != nil {
		t.Fatal(err)
	}
	if err := ensure(); err != nil {
		t.Errorf("the second machine, without VMs of the first: %v", err)
	}
	if now, err := records.Machine(t.Context(), node); err != nil || now == before {
		t.Errorf("the machine is %q still: %v", now, err)
	}
	fenced("its taint is of itself now", `{}`, true)
}

// madeAgain deletes the Node of an agent's pod, and makes it again with another pod.
func madeAgain(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	client, err := kubernetes.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if err := client.CoreV1().Pods(system).Delete(t.Context(), pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), pod.Spec.NodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return agent(t, pod.Spec.NodeName)
}

// fencedBy patches a Node, and compares whether the machine of the records counts as fenced.
func fencedBy(t *testing.T, records *store.Store, node string) func(what, patch string, want bool) {
	t.Helper()
	scheme, err := operator.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.REST(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	view := operator.View{Reader: c, Machine: records.Machine}
	return func(what, patch string, want bool) {
		t.Helper()
		if err := c.Patch(context.WithoutCancel(t.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
			client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
		if got, err := view.NodeFenced(t.Context(), node); err != nil || got != want {
			t.Errorf("%s: fenced %v, want %v: %v", what, got, want, err)
		}
	}
}
