//go:build integration

package control

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// loses has a node end with a VM. No heartbeat comes from it any more, and its pod is taken away by force.
func (w *world) loses(node, vm string, pod *corev1.Pod) {
	w.t.Helper()
	w.become(vm, node, "")
	w.heartbeat(node, false)
	w.gone(pod)
}

// vouch says of a node that it runs nothing any more, until the test ends.
func (w *world) vouch(node string) {
	w.t.Helper()
	taint := func(taints string) error {
		return w.api.Patch(w.t.Context(), worker(node), client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"taints":`+taints+`}}`)))
	}
	if err := taint(`[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]`); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.collects[node] = true
	w.mu.Unlock()
	w.t.Cleanup(func() {
		if _, err := server.Kubectl(context.WithoutCancel(w.t.Context()), "", "taint", "node", node,
			"node.kubernetes.io/out-of-service-"); err != nil {
			w.t.Log(err)
		}
	})
}

// event waits for an event about an object.
func (w *world) event(uid types.UID, reason, says string) {
	w.t.Helper()
	apitest.Eventually(w.t, "the event "+reason, func() (bool, error) {
		all := &eventsv1.EventList{}
		err := w.api.List(w.t.Context(), all, client.InNamespace("default"))
		for _, e := range all.Items {
			if e.Regarding.UID == uid && e.Reason == reason && strings.Contains(e.Note, says) {
				return true, nil
			}
		}
		return false, err
	})
}

// awake is a Sandbox whose VM has slept once, and runs at a node.
func (w *world) awake(s *unstructured.Unstructured, node string) *corev1.Pod {
	w.t.Helper()
	name, uid := s.GetName(), string(s.GetUID())
	first := w.bound(podOf(s, name), node)
	w.comes(first, node, uid)
	w.suspends(name, "Suspended")
	w.leaves(first, node, uid)
	w.suspends(name, "Running")
	second := w.bound(podOf(s, name), node)
	w.comes(second, node, uid)
	return second
}

// The VM of a Sandbox whose node is lost for good wakes elsewhere from its newest snapshot, if its Sandbox says so.
// Neither time nor a pod that is gone is the proof, and no VM is taken from a node that answers. If the Sandbox is
// deleted, the record ends with the node.
func TestSandboxOfALostNode(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	s := w.sandbox("lost")
	uid := string(s.GetUID())
	pod := w.awake(s, "a")
	w.loses("a", pods.SandboxRecord("default", uid), pod)
	pod = w.bound(podOf(s, "lost"), "b")
	refused := func(reason, says string) {
		t.Helper()
		if _, err := w.resolve(pod, "b"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), says) {
			t.Fatalf("it is answered %v, want %q", err, says)
		}
		w.event(pod.UID, reason, says)
	}
	refused("VMRefused", "node a has the VM")
	w.vouch("a")
	refused("NodeLost", "godwit.dev/on-node-loss=Restore")
	if err := w.api.Patch(t.Context(), s, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"godwit.dev/on-node-loss":"Restore"}}}`))); err != nil {
		t.Fatal(err)
	}
	w.heartbeat("a", true)
	refused("RecoverFailed", "the node answers")
	w.heartbeat("a", false)
	w.comes(pod, "b", uid)
	w.event(pod.UID, "Recovered", "node a is lost")

	w.loses("b", pods.SandboxRecord("default", uid), pod)
	if err := w.api.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.vouch("b")
	apitest.Eventually(t, "the record ends with its Sandbox", func() (bool, error) {
		_, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed(pods.SandboxRecord("default", uid))})
		return errdefs.IsNotFound(err), err
	})
}

// A Sandbox that is deleted while a hibernate of its lost node is open ends with that node.
func TestSandboxOfALostNodeThatHibernated(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	s := w.sandbox("lost-asleep")
	uid := string(s.GetUID())
	name := pods.SandboxRecord("default", uid)
	pod := w.awake(s, "a")
	rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed(name)})
	if err != nil {
		t.Fatal(err)
	}
	w.loses("a", name, pod)
	if _, err := w.records.Open(t.Context(), &nodev1.OpenRequest{Vm: vmNamed(name), Uid: uid, Operation: &nodev1.Operation{
		Id: "hangs-" + uid, Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Source: "a", Generation: rec.GetGeneration(),
		Repository: "r", Tag: "t"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.vouch("a")
	apitest.Eventually(t, "the record ends with its Sandbox", func() (bool, error) {
		_, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed(name)})
		return errdefs.IsNotFound(err), err
	})
}

func (w *world) wakesFail(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noWake = why
}

// A Sandbox whose wake fails says why, keeps its memory, is tried again now and then, and comes once the cause is gone.
func TestSandboxWhoseWakeFails(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	s := w.sandbox("wake-fails")
	uid := string(s.GetUID())
	name := pods.SandboxRecord("default", uid)
	pod := w.awake(s, "a")
	w.suspends("wake-fails", "Suspended")
	w.leaves(pod, "a", uid)
	w.suspends("wake-fails", "Running")
	w.wakesFail("the registry is away")
	pod = w.bound(podOf(s, "wake-fails"), "b")
	for range 3 { // nil: the wake is under way
		apitest.Eventually(t, "the failure is answered", func() (bool, error) {
			_, err := w.resolve(pod, "b")
			return errdefs.IsFailedPrecondition(err) && strings.Contains(err.Error(), "the registry is away"), err
		})
	}
	w.event(pod.UID, "RestoreFailed", "the registry is away")
	o := &v1alpha1.VMRecord{}
	if err := w.api.Get(t.Context(), types.NamespacedName{Name: name}, o); err != nil {
		t.Fatal(err)
	}
	rec, closed, err := store.Record(o)
	failures := slices.DeleteFunc(closed, func(op *nodev1.Operation) bool {
		return op.GetPhase() != nodev1.Phase_PHASE_FAILED
	})
	if err != nil || len(failures) != 1 || rec.GetOwner().GetDigest() == "" {
		t.Errorf("after three questions: %v, %d wakes failed, %v", err, len(failures), rec)
	}
	w.wakesFail("")
	apitest.Eventually(t, "it is tried again", func() (bool, error) {
		_, err := w.resolve(pod, "b")
		return err == nil, err
	})
	w.comes(pod, "b", uid)
}

func (w *world) heartbeat(node string, beats bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[node] = !beats
}
