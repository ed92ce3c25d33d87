//go:build integration

package control

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// installSandboxes installs agent-sandbox's schema, of its pinned module, and godwit's policies for it.
func installSandboxes(t *testing.T) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/agent-sandbox")
	list.Dir = "../../../tools/agentsandbox"
	out, err := list.Output()
	_, dir, there := strings.Cut(string(out), `"Dir": "`)
	if dir, _, _ = strings.Cut(dir, `"`); err != nil || !there {
		t.Fatalf("find agent-sandbox: %v: %s", err, out)
	}
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", filepath.Join(dir, "k8s", "crds", "agents.x-k8s.io_sandboxes.yaml")},
		{"apply", "-k", "../../../packaging/kubernetes/agent-sandbox"},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/sandboxes.agents.x-k8s.io"},
	} {
		if _, err := server.Kubectl(t.Context(), "", args...); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Eventually(t, "the policy gives names", func() (bool, error) {
		probe := &unstructured.Unstructured{}
		probe.SetName("probe")
		probe.SetUID("11111111-1111-1111-1111-111111111111")
		pod := podOf(probe, "probe")
		err := api().Create(t.Context(), pod, client.DryRunAll)
		return err == nil && pod.Annotations[pods.AnnotationVM] != "", err
	})
}

func podOf(sandbox *unstructured.Unstructured, name string) *corev1.Pod {
	controller, class, seconds := true, "godwit", int64(60)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		Labels:      map[string]string{pods.LabelSandbox: pods.NameHash(sandbox.GetName())},
		Annotations: map[string]string{pods.AnnotationOnStop: pods.OnStopHibernate},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "agents.x-k8s.io/v1beta1", Kind: "Sandbox",
			Name: sandbox.GetName(), UID: sandbox.GetUID(), Controller: &controller}}},
		Spec: corev1.PodSpec{RuntimeClassName: &class, TerminationGracePeriodSeconds: &seconds,
			Containers: []corev1.Container{{Name: "main", Image: "m:1"}}}}
}

// sandbox makes a Sandbox, which has no pod yet.
func (w *world) sandbox(name string) *unstructured.Unstructured {
	w.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{"podTemplate": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "main", "image": "m:1"}}}}}}}
	if err := w.api.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	return o
}

func (w *world) suspends(name, mode string) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "agents.x-k8s.io", Version: "v1beta1", Kind: "Sandbox"})
	o.SetName(name)
	o.SetNamespace("default")
	if err := w.api.Patch(w.t.Context(), o, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"operatingMode":"`+mode+`"}}`))); err != nil {
		w.t.Fatal(err)
	}
}

// bound makes a pod, as agent-sandbox and the scheduler do.
func (w *world) bound(pod *corev1.Pod, node string) *corev1.Pod {
	w.t.Helper()
	if err := w.api.Create(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx := context.WithoutCancel(w.t.Context())
		_ = w.api.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	})
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := w.api.SubResource("binding").Create(w.t.Context(), pod, bind); err != nil {
		w.t.Fatal(err)
	}
	return pod
}

func (w *world) asks() *Pods {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answers
}

// resolve asks as the shim of a node does: again while it is not told.
func (w *world) resolve(pod *corev1.Pod, node string) (resp *nodev1.ResolveResponse, err error) {
	w.t.Helper()
	ctx := controller.WithPeer(w.t.Context(), node)
	name := pod.Annotations[pods.AnnotationVM]
	if owner := pods.SandboxOf(pod); name == "" && owner != nil {
		name = pods.SandboxVM(string(owner.UID)) // a node may say what it likes
	}
	apitest.Eventually(w.t, "pod "+pod.Name+" is resolved", func() (bool, error) {
		answers := w.asks()
		if answers == nil {
			return false, nil
		}
		resp, err = answers.Resolve(ctx, &nodev1.ResolveRequest{Pod: asked(pod), Vm: vmNamed("default." + name)})
		return err == nil || errdefs.IsPermissionDenied(err) || errdefs.IsFailedPrecondition(err), err
	})
	return resp, err
}

func asked(pod *corev1.Pod) *nodev1.Pod {
	return &nodev1.Pod{Namespace: pod.Namespace, Name: pod.Name, Uid: string(pod.UID)}
}

// comes has a pod become the VM of its Sandbox, whose record has that uid.
func (w *world) comes(pod *corev1.Pod, node, uid string) {
	w.t.Helper()
	resp, err := w.resolve(pod, node)
	if err != nil || resp.GetUid() != uid || resp.GetGraceMs() != 60_000 {
		w.t.Fatalf("pod %s on node %s is resolved as %v, %v", pod.Name, node, resp, err)
	}
	vm := vmNamed(pods.SandboxRecord("default", uid))
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vm})
	if err != nil {
		w.t.Fatal(err)
	}
	if rec.GetOperation() == nil {
		if _, err := w.records.Own(w.t.Context(), &nodev1.OwnRequest{Vm: vm, Node: node, Generation: rec.GetGeneration(),
			Uid: uid}); err != nil {
			w.t.Fatal(err)
		}
		w.become(vm.GetId(), node, runs)
		return
	}
	if op := rec.GetOperation(); op.GetKind() != nodev1.Kind_KIND_WAKE || op.GetDestination() != node ||
		op.GetPlace() != string(pod.UID) {
		w.t.Fatalf("pod %s may come, and the operation is %v", pod.Name, op)
	}
	w.become(vm.GetId(), node, armed)
	w.owned(uid, "wakes on node "+node, func(rec *nodev1.Record) bool {
		return rec.GetOwner().GetNode() == node && rec.GetPlace() == string(pod.UID) && rec.GetOperation() == nil
	})
}

func (w *world) owned(uid, what string, is func(*nodev1.Record) bool) (rec *nodev1.Record) {
	w.t.Helper()
	vm := vmNamed(pods.SandboxRecord("default", uid))
	apitest.Eventually(w.t, "VM "+vm.GetId()+" "+what, func() (bool, error) {
		var err error
		rec, err = w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vm})
		return err == nil && is(rec), fmt.Errorf("%w, %v", err, rec)
	})
	return rec
}

// leaves deletes a pod. Its shim asks what becomes of the VM, and has it hibernate.
func (w *world) leaves(pod *corev1.Pod, node, uid string) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
	vm := vmNamed(pods.SandboxRecord("default", uid))
	apitest.Eventually(w.t, "the stop of pod "+pod.Name+" is a hibernate", func() (bool, error) {
		resp, err := w.asks().Stopping(controller.WithPeer(w.t.Context(), node), &nodev1.StoppingRequest{Pod: asked(pod),
			Vm: vm, Uid: uid})
		return resp.GetHibernate(), fmt.Errorf("%v, %w", resp, err)
	})
	rec := w.owned(uid, "is there", func(*nodev1.Record) bool { return true })
	if _, err := w.records.Open(w.t.Context(), &nodev1.OpenRequest{Vm: vm, Uid: uid, Operation: &nodev1.Operation{
		Id: "stop-" + string(pod.UID), Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Generation: rec.GetGeneration(),
		Source: node, Managed: true, Repository: "r/" + uid, Tag: "t-" + string(pod.UID)}}); err != nil {
		w.t.Fatal(err)
	}
	w.owned(uid, "sleeps", func(rec *nodev1.Record) bool {
		return rec.GetOwner().GetDigest() != "" && rec.GetOperation() == nil
	})
	w.become(vm.GetId(), node, "")
	w.gone(pod)
}

// sandboxLives is a Sandbox whose VM boots on node a, sleeps, and wakes on node b. It sleeps again, and ends with its
// Sandbox. Another one of its name begins anew.
func (w *world) sandboxLives(name string) {
	w.t.Helper()
	s := w.sandbox(name)
	uid := string(s.GetUID())
	first := w.bound(podOf(s, name), "a")
	w.comes(first, "a", uid)
	w.suspends(name, "Suspended")
	w.leaves(first, "a", uid)
	w.suspends(name, "Running")
	second := w.bound(podOf(s, name), "b")
	w.comes(second, "b", uid)
	w.suspends(name, "Suspended")
	w.leaves(second, "b", uid)
	if err := w.api.Delete(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
	again := w.sandbox(name)
	third := w.bound(podOf(again, name), "a")
	w.comes(third, "a", string(again.GetUID()))
	w.owned(string(again.GetUID()), "boots", func(rec *nodev1.Record) bool {
		return rec.GetOwner().GetNode() == "a" && rec.GetGeneration() == 1 && len(rec.GetSnapshots()) == 0
	})
	apitest.Eventually(w.t, "the record ends with its Sandbox", func() (bool, error) {
		_, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed(pods.SandboxRecord("default", uid))})
		return errdefs.IsNotFound(err), err
	})
	if _, there, err := w.asks().Notes.NoteOf(w.t.Context(), operator.KindSandbox, uid); there || err != nil {
		w.t.Errorf("the note of the Sandbox stays: %v", err)
	}
	owed, err := w.records.Owed(w.t.Context(), &nodev1.OwedRequest{})
	if err != nil || !strings.Contains(fmt.Sprint(owed), "r/"+uid) {
		w.t.Errorf("its snapshots are to be deleted: %v, %v", owed, err)
	}
}

// A VM of a Sandbox sleeps with its pod, and wakes in the next one.
func TestSandboxMeetsTheEngine(t *testing.T) {
	installSandboxes(t)
	t.Run("all is well", func(t *testing.T) { newWorld(t).sandboxLives("agent") })
	t.Run("calls fail", func(t *testing.T) {
		newWorld(t, func(w *world) { w.faulty = true }).sandboxLives("faulty")
	})
	for _, every := range []int{2, 3, 4} {
		t.Run(fmt.Sprint("the operator is killed after writes, ", every), func(t *testing.T) {
			newWorld(t, func(w *world) { w.every = every }).sandboxLives(fmt.Sprint("killed-", every))
		})
	}
}

// Pods that are not the one of a Sandbox that sleeps: each is refused with an event, and its record is as it was.
func TestForgedPodsOfSandbox(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	s := w.sandbox("forged")
	uid := string(s.GetUID())
	first := w.bound(podOf(s, "forged"), "a")
	w.comes(first, "a", uid)
	w.suspends("forged", "Suspended")
	w.leaves(first, "a", uid)
	before := w.owned(uid, "sleeps", func(*nodev1.Record) bool { return true })
	refused := func(what, says string, pod *corev1.Pod) {
		t.Helper()
		pod = w.bound(pod, "b")
		_, err := w.resolve(pod, "b")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is answered %v, want %q", what, err, says)
		}
		apitest.Eventually(t, "the event of "+what, func() (bool, error) {
			all := &eventsv1.EventList{}
			err := w.api.List(t.Context(), all, client.InNamespace("default"))
			for _, e := range all.Items {
				if e.Regarding.UID == pod.UID && e.Reason == "VMRefused" {
					return true, nil
				}
			}
			return false, err
		})
		w.gone(pod)
		if after := w.owned(uid, "is there", func(*nodev1.Record) bool { return true }); after.GetVersion() !=
			before.GetVersion() {
			t.Errorf("%s has changed the record: %v", what, after)
		}
	}
	refused("its pod while it is suspended", "Suspended", podOf(s, "forged"))
	w.suspends("forged", "Running")
	refused("a pod of another name", "is called forged", podOf(s, "thief"))
	collides := podOf(s, "forged")
	collides.Labels[pods.LabelSandbox] = "00000000"
	refused("a pod of another hash", "sandbox-name-hash", collides)
	adopted := podOf(s, "forged") // agent-sandbox takes up a pod that somebody made, without a name
	adopted.Annotations = nil
	refused("a pod whose node names the VM", "gave the pod no such name", adopted)
	other := w.sandbox("other")
	mixed := podOf(other, "forged")
	mixed.OwnerReferences[0].UID = s.GetUID()
	refused("a pod of the uid of one and the name of another", "gone", mixed)
	w.comes(w.bound(podOf(s, "forged"), "b"), "b", uid)
}

// Who makes pods, and does not write the status of Sandboxes, makes no pod that a Sandbox's VM wakes in.
func TestPolicyOfSandboxes(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	s := w.sandbox("policy")
	for _, args := range [][]string{
		{"create", "clusterrole", "makes-pods", "--verb=create,patch,update,get", "--resource=pods"},
		{"create", "clusterrole", "writes-sandboxes", "--verb=update", "--resource=sandboxes.agents.x-k8s.io/status"},
		{"create", "clusterrolebinding", "makes-pods", "--clusterrole=makes-pods", "--user=maker", "--user=agents"},
		{"create", "clusterrolebinding", "writes-sandboxes", "--clusterrole=writes-sandboxes", "--user=agents"},
	} {
		if _, err := server.Kubectl(t.Context(), "", args...); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user string) client.Client {
		config := server.REST()
		config.Impersonate.UserName = user
		c, err := client.New(config, client.Options{Scheme: w.api.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	maker, agents := as("maker"), as("agents")
	name := "sbx-" + string(s.GetUID())
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := podOf(s, "policy")
		change(p)
		return p
	}
	tries := func(c client.Client, p *corev1.Pod) error { return c.Create(t.Context(), p, client.DryRunAll) }
	apitest.Eventually(t, "agent-sandbox may make it", func() (bool, error) {
		p := podOf(s, "policy")
		err := tries(agents, p)
		return err == nil && p.Annotations[pods.AnnotationVM] == name, err
	})
	for what, test := range map[string]struct {
		change func(*corev1.Pod)
		denied bool
	}{
		"a forged owner": {change: func(*corev1.Pod) {}, denied: true},
		"a forged name": {change: func(p *corev1.Pod) {
			p.OwnerReferences, p.Annotations = nil, map[string]string{pods.AnnotationVM: name}
		}, denied: true},
		"an owner without the opt-in": {change: func(p *corev1.Pod) { p.Annotations = nil }},
		"a pod of its own": {change: func(p *corev1.Pod) {
			p.OwnerReferences, p.Annotations = nil, map[string]string{pods.AnnotationVM: "mine"}
		}},
	} {
		err := tries(maker, pod(test.change))
		if denied := err != nil && strings.Contains(err.Error(), "status of a Sandbox"); denied != test.denied ||
			err != nil && !denied {
			t.Errorf("%s: %v", what, err)
		}
	}
	orphan := pod(func(p *corev1.Pod) { p.OwnerReferences, p.Annotations = nil, nil }) // that agent-sandbox adopts
	if err := maker.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.gone(orphan) })
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"godwit.dev/vm":"`+name+`"}}}`))
	err := maker.Patch(t.Context(), orphan, patch)
	if err == nil || !strings.Contains(err.Error(), "status of a Sandbox") {
		t.Errorf("a name that is given later: %v", err)
	}
}
