//go:build integration

package authority_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var firstMachine = corev1.NodeSystemInfo{SystemUUID: "s1", MachineID: "m1"}

const outOfService = `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`

// again is a node whose first machine has its certificate, and a VM.
type again struct {
	node    string
	records *store.Store
	first   *corev1.Pod
	before  store.Machine
	rec     *nodev1.Record
}

// begun makes it. The record is made by a node, or by the operator.
func begun(t *testing.T, records *store.Store, node, by string) again {
	t.Helper()
	a := again{node: node, records: records, first: agentOf(t, node, firstMachine)}
	if err := a.ensure(t, a.first); err != nil {
		t.Fatalf("the first machine: %v", err)
	}
	vm := &nodev1.VM{Namespace: store.Kubernetes, Id: "default." + node}
	var err error
	if a.rec, err = records.Apply(t.Context(), vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm, Uid: "u-" + node,
		Generation: 1, Owner: &nodev1.Owner{Node: node}, MadeBy: by}}); err != nil {
		t.Fatal(err)
	}
	if a.before, err = records.Machine(t.Context(), node); err != nil || a.before.UID == "" || !a.before.Told() {
		t.Fatalf("the first machine is %+v: %v", a.before, err)
	}
	return a
}

// ensure asks for a first certificate, with the token of an agent's pod.
func (a again) ensure(t *testing.T, pod *corev1.Pod) error {
	t.Helper()
	_, err := certificate(t, as(t, authority.Account, pod), a.node).Ensure(t.Context(), time.Now())
	return err
}

// end removes the record of the VM.
func (a again) end(t *testing.T) {
	t.Helper()
	if _, err := a.records.Apply(t.Context(), a.rec.GetVm(), a.rec.GetVersion(), transition.Change{}); err != nil {
		t.Fatal(err)
	}
}

// refused wants that the machine of a pod gets no certificate, and that the event of its Node says so too.
func (a again) refused(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := a.ensure(t, pod); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "was made again") ||
		!strings.Contains(err.Error(), authority.LabelReplaces+"="+a.before.UID) {
		t.Errorf("the second machine: %v", err)
	}
	apitest.Eventually(t, "an event of node "+a.node, func() (bool, error) {
		all := &corev1.EventList{}
		err := clientOf(t, server.REST()).List(t.Context(), all, client.InNamespace(metav1.NamespaceDefault))
		return slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == a.node && e.Reason == "NodeMadeAgain" && strings.Contains(e.Message, "drain")
		}), err
	})
}

// signing runs an operator.
func signing(t *testing.T) *store.Store {
	t.Helper()
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
	return records
}

// A Node is made again under its name, on another machine with an empty disk. The first machine may still run a VM. The
// new one gets no certificate: so it cannot say that there is no such VM. Its taints do not vouch
// for the first machine; a label with that one's uid does. Once the records name no VM there, it is the node.
func TestNodeMadeAgain(t *testing.T) {
	records := signing(t)
	a := begun(t, records, "again", "")
	second := madeAgain(t, a.first, corev1.NodeSystemInfo{SystemUUID: "s2", MachineID: "m1"})
	a.refused(t, second)
	fenced := fencedBy(t, records, a.node)
	fenced("a new Node says nothing", `{}`, false)
	fenced("its taint is of itself", outOfService, false)
	fenced("a label of another uid", `{"metadata":{"labels":{"`+authority.LabelReplaces+`":"x"}}}`, false)
	fenced("a label of the first one's uid", `{"metadata":{"labels":{"`+authority.LabelReplaces+`":"`+a.before.UID+`"}}}`,
		true)
	a.refused(t, second) // the operator has yet to give the VM up, or to restore it
	a.end(t)
	if err := a.ensure(t, second); err != nil {
		t.Errorf("the second machine, without VMs of the first: %v", err)
	}
	if now, err := records.Machine(t.Context(), a.node); err != nil || now.UID == a.before.UID || now.SystemUUID != "s2" {
		t.Errorf("the machine is %+v still: %v", now, err)
	}
	fenced("its taint is of itself now", `{}`, true)
}

// A VM that a node made is no VirtualMachine: the operator neither restores it nor gives it up. Once an administrator
// vouches by the label that the first machine runs nothing, it keeps the name from the new machine no longer.
func TestPlainVMOfBefore(t *testing.T) {
	a := begun(t, signing(t), "plain", "plain")
	second := madeAgain(t, a.first, corev1.NodeSystemInfo{SystemUUID: "s2", MachineID: "m2"})
	a.refused(t, second)
	label := func(value string) {
		t.Helper()
		if err := patched(clientOf(t, server.REST()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node}},
			`{"metadata":{"labels":{"`+authority.LabelReplaces+`":"`+value+`"}}}`)(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	label("x")
	a.refused(t, second)
	label(a.before.UID)
	if err := a.ensure(t, second); err != nil {
		t.Errorf("the second machine: %v", err)
	}
	a.end(t)
}

// A Node that was made again is of the first machine only if both ids say so. Then it gets its certificate while its
// VMs run, its taint is of itself also before that, and the label says nothing.
func TestSameMachineAgain(t *testing.T) {
	records := signing(t)
	for name, c := range map[string]struct {
		ids  corev1.NodeSystemInfo
		same bool
	}{
		"same":         {firstMachine, true},
		"cloned-image": {corev1.NodeSystemInfo{SystemUUID: "s2", MachineID: "m1"}, false},
		"alike-board":  {corev1.NodeSystemInfo{SystemUUID: "s1", MachineID: "m2"}, false},
		"says-nothing": {corev1.NodeSystemInfo{}, false},
		"says-half":    {corev1.NodeSystemInfo{SystemUUID: "s1"}, false},
	} {
		a := begun(t, records, name, "")
		second := madeAgain(t, a.first, c.ids)
		fenced := fencedBy(t, records, name)
		label := `{"metadata":{"labels":{"` + authority.LabelReplaces + `":`
		fenced(name+": with the label", label+`"`+a.before.UID+`"}}}`, !c.same)
		fenced(name+": without", label+`null}}}`, false)
		fenced(name+": with a taint", outOfService, c.same)
		if !c.same {
			a.refused(t, second)
		} else if err := a.ensure(t, second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		fenced(name+": with a taint, after it has asked", `{}`, c.same)
		now, err := records.Machine(t.Context(), name)
		if err != nil || (now.UID != a.before.UID) != c.same || now.SystemUUID != a.before.SystemUUID {
			t.Errorf("%s: the machine is %+v, and was %+v: %v", name, now, a.before, err)
		}
		a.end(t)
	}
}

// A machine that is not known to be another one is not signed for: whatever the API server does not say is an error.
func TestUnreadMachine(t *testing.T) {
	failed := errors.New("no answer")
	view := operator.View{Reader: clientOf(t, server.REST())}
	view.Machine = func(context.Context, string) (store.Machine, error) { return store.Machine{}, failed }
	makes(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unread"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}}})
	if fenced, err := view.NodeFenced(t.Context(), "unread"); fenced || !errors.Is(err, failed) {
		t.Errorf("fenced %v: %v", fenced, err)
	}
}

// madeAgain deletes the Node of an agent's pod, and makes it again with another pod.
func madeAgain(t *testing.T, pod *corev1.Pod, machine corev1.NodeSystemInfo) *corev1.Pod {
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
	return agentOf(t, pod.Spec.NodeName, machine)
}

// fencedBy patches a Node, and compares whether the machine of the records counts as fenced.
func fencedBy(t *testing.T, records *store.Store, node string) func(what, patch string, want bool) {
	t.Helper()
	c := clientOf(t, server.REST())
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
