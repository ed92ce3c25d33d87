//go:build integration

package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// dies has a node lose its power: what it ran has ended, and nothing is heard of it.
func (w *world) dies(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[node] = true
	for vm := range w.at {
		w.at[vm][node] = ""
	}
}

// record reads what the records have of a VM.
func (w *world) record(name string) *nodev1.Record {
	w.t.Helper()
	rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed("default." + name)})
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// phase waits until the operation of a VM is in that phase.
func (w *world) phase(name string, kind nodev1.Kind, phase nodev1.Phase) {
	w.t.Helper()
	apitest.Eventually(w.t, fmt.Sprintf("VM %s is in %s", name, phase), func() (bool, error) {
		op := w.record(name).GetOperation()
		return op.GetKind() == kind && op.GetPhase() == phase, fmt.Errorf("%v", op)
	})
}

// hang has the operations of nodes stand still in a phase; false: no more.
func (w *world) hang(phase nodev1.Phase, hangs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs[phase] = hangs
}

// saved is a VM that has slept once, and runs on node a.
func (w *world) saved(name string) {
	w.t.Helper()
	w.create(name)
	w.sleeps(name)
	w.wants(name, `"operatingMode":"Running"`)
	w.running(name, "a")
}

func (w *world) sleeps(name string) {
	w.t.Helper()
	w.wants(name, `"operatingMode":"Hibernated"`)
	w.until(name, "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated && len(w.pods(name)) == 0
	})
}

// ordered makes an order of a person.
func (w *world) ordered(vm, name string, kind v1alpha1.OperationKind) {
	w.t.Helper()
	op := &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1alpha1.VMOperationSpec{VMRef: v1alpha1.VMRef{Name: vm}, Kind: kind}}
	if err := w.api.Create(w.t.Context(), op); err != nil {
		w.t.Fatal(err)
	}
}

// says waits until an order is in that phase, and says that of it.
func (w *world) says(order string, phase v1alpha1.MigrationPhase, text string) {
	w.t.Helper()
	apitest.Eventually(w.t, fmt.Sprintf("order %s is %s and says %q", order, phase, text), func() (bool, error) {
		op := &v1alpha1.VMOperation{}
		err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: "default", Name: order}, op)
		said := op.Status.Reason
		for _, c := range op.Status.Conditions {
			said += " " + c.Message
		}
		return err == nil && op.Status.Phase == phase && strings.Contains(said, text), fmt.Errorf("%w: %+v", err, op.Status)
	})
}

// over waits until all orders of a VM have ended.
func (w *world) over(vm string) (all []v1alpha1.VMOperation) {
	w.t.Helper()
	apitest.Eventually(w.t, "all orders of VM "+vm+" have ended", func() (bool, error) {
		all = w.orders(vm)
		for _, op := range all {
			if op.Status.Phase != v1alpha1.MigrationSucceeded && op.Status.Phase != v1alpha1.MigrationFailed {
				return false, fmt.Errorf("order %s is %s", op.Name, op.Status.Phase)
			}
		}
		return true, nil
	})
	return all
}

// closed is an operation that has ended.
func (w *world) closed(id string) *nodev1.Operation {
	w.t.Helper()
	resp, err := w.records.Operation(w.t.Context(), &nodev1.OperationRequest{Id: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetOperation()
}

// A node dies while a VM hibernates there, or while a checkpoint of it is made. Nothing is done until somebody vouches
// for the node. Then the VM goes on elsewhere by its policy. Without it, the orders that waited fail.
func TestNodeDiesWithAnOperation(t *testing.T) {
	w := newWorld(t)
	w.saved("captured")
	for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_CHECKPOINT} {
		node := w.record("captured").GetOwner().GetNode()
		rec, id := w.record("captured"), strings.ToLower(kind.String())
		w.hang(nodev1.Phase_PHASE_TRANSFERRING, true)
		if _, err := w.records.Open(t.Context(), &nodev1.OpenRequest{Vm: rec.GetVm(), Uid: rec.GetUid(),
			Operation: &nodev1.Operation{Id: id, Kind: kind, Attempt: 1, Source: node, Generation: rec.GetGeneration(),
				Managed: true, Repository: "r", Tag: "t"}}); err != nil {
			t.Fatal(err)
		}
		w.phase("captured", kind, nodev1.Phase_PHASE_TRANSFERRING)
		w.dies(node)
		w.hang(nodev1.Phase_PHASE_TRANSFERRING, false)
		order := strings.ReplaceAll(id, "_", "-")
		w.ordered("captured", order, v1alpha1.KindCheckpoint)
		w.says(order, v1alpha1.MigrationPending, "operation "+id+" of this VM ends first")
		w.wants("captured", `"onNodeLoss":"Wait"`)
		w.vouch(node)
		w.until("captured", "says that its node is lost", func(vm *v1alpha1.VirtualMachine) bool {
			for _, c := range vm.Status.Conditions {
				if c.Reason == "NodeLost" && strings.Contains(c.Message, "spec.onNodeLoss") {
					return vm.Status.Owner.Node == node && vm.Status.Operation.ID == id
				}
			}
			return false
		})
		w.says(order, v1alpha1.MigrationFailed, "spec.onNodeLoss")
		w.wants("captured", `"onNodeLoss":"Restore"`)
		next := map[string]string{"a": "b", "b": "c"}[node]
		w.running("captured", next)
		if op := w.closed(id); op.GetPhase() != nodev1.Phase_PHASE_FAILED || !strings.Contains(op.GetReason(), "is lost") {
			t.Errorf("the operation of the lost node is %v", op)
		}
	}
}

// A node dies while a VM moves away from it. The VM goes on elsewhere by its policy, and not twice.
func TestNodeDiesUnderAMove(t *testing.T) {
	w := newWorld(t)
	w.saved("mover")
	w.wants("mover", `"onNodeLoss":"Restore"`)
	w.mu.Lock()
	w.slow = time.Second
	w.mu.Unlock()
	w.wants("mover", `"nodeName":"b"`)
	w.phase("mover", nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_TRANSFERRING)
	w.dies("a")
	w.phase("mover", nodev1.Kind_KIND_MIGRATE, nodev1.Phase_PHASE_ABORTING) // its source is asked, and does not answer
	id := w.record("mover").GetOperation().GetId()
	w.ordered("mover", "mover-saved", v1alpha1.KindCheckpoint)
	w.says("mover-saved", v1alpha1.MigrationPending, "operation "+id+" of this VM ends first")
	w.vouch("a")
	w.running("mover", "b")
	w.says("mover-saved", v1alpha1.MigrationSucceeded, "")
	if op := w.closed(id); op.GetPhase() != nodev1.Phase_PHASE_FAILED {
		t.Errorf("the move is %v", op)
	}
}

// A node dies before it has cleaned up after a hibernate. The VM sleeps, so that it needs no policy to wake elsewhere.
func TestNodeDiesAfterAHibernate(t *testing.T) {
	w := newWorld(t)
	w.create("asleep")
	w.hang(nodev1.Phase_PHASE_CLEANING, true)
	w.wants("asleep", `"operatingMode":"Hibernated"`)
	w.phase("asleep", nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING)
	id := w.record("asleep").GetOperation().GetId()
	w.dies("a")
	w.hang(nodev1.Phase_PHASE_CLEANING, false)
	w.vouch("a")
	w.wants("asleep", `"operatingMode":"Running"`)
	w.restored(w.running("asleep", "b"), "Woken")
	if op := w.closed(id); op.GetPhase() != nodev1.Phase_PHASE_SUCCEEDED || !op.GetCleanupPending() {
		t.Errorf("the hibernate is %v", op)
	}
	for _, op := range w.over("asleep") {
		if op.Status.Phase == v1alpha1.MigrationFailed {
			t.Errorf("order %s has failed: %s", op.Name, op.Status.Reason)
		}
	}
}

// longAgo has the open operation of a VM be committed an hour ago.
func (w *world) longAgo(vm *nodev1.VM) {
	w.t.Helper()
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		w.t.Fatal(err)
	}
	state, err := st.Load(w.t.Context(), vm, transition.Asked{})
	if err != nil {
		w.t.Fatal(err)
	}
	rec := proto.CloneOf(state.Record)
	rec.Operation.CommittedUnixNano = time.Now().Add(-time.Hour).UnixNano()
	if _, err := st.Apply(w.t.Context(), vm, rec.GetVersion(), transition.Change{Record: rec,
		Under: state.Store.GetVersion()}); err != nil {
		w.t.Fatal(err)
	}
}

// sleptAt has the VM of a Sandbox sleep at a node that dies before it has cleaned up.
func (w *world) sleptAt(node, uid string) {
	w.t.Helper()
	vm := vmNamed(pods.SandboxRecord("default", uid))
	rec := w.owned(uid, "is there", func(*nodev1.Record) bool { return true })
	w.hang(nodev1.Phase_PHASE_CLEANING, true)
	if _, err := w.records.Open(w.t.Context(), &nodev1.OpenRequest{Vm: vm, Uid: uid, Operation: &nodev1.Operation{
		Id: "stop-" + node + uid, Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1, Generation: rec.GetGeneration(),
		Source: node, Managed: true, Repository: "r/" + uid, Tag: "t-" + node}}); err != nil {
		w.t.Fatal(err)
	}
	w.owned(uid, "sleeps", func(rec *nodev1.Record) bool {
		return rec.GetOperation().GetPhase() == nodev1.Phase_PHASE_CLEANING
	})
	w.dies(node)
	w.hang(nodev1.Phase_PHASE_CLEANING, false)
	w.longAgo(vm)
}

// A node is gone for long before it has cleaned up after a hibernate, and no one vouches for it: its Node may
// be deleted. What slept wakes elsewhere, also with another order of it that waits, and ends with its object.
func TestNodeIsGoneAfterAHibernate(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	w.create("gone-asleep")
	s := w.sandbox("gone-asleep")
	uid := string(s.GetUID())
	pod := w.awake(s, "b")
	w.hang(nodev1.Phase_PHASE_CLEANING, true)
	w.wants("gone-asleep", `"operatingMode":"Hibernated"`)
	w.phase("gone-asleep", nodev1.Kind_KIND_HIBERNATE, nodev1.Phase_PHASE_CLEANING)
	w.ordered("gone-asleep", "gone-nightly", v1alpha1.KindCheckpoint)
	w.says("gone-nightly", v1alpha1.MigrationPending, "of this VM ends first")
	w.dies("a")
	w.longAgo(vmNamed("default.gone-asleep"))
	w.wants("gone-asleep", `"operatingMode":"Running"`)
	w.hang(nodev1.Phase_PHASE_CLEANING, false)
	w.until("gone-asleep", "runs on node b", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMRunning && vm.Status.Owner.Node == "b"
	})
	w.says("gone-nightly", v1alpha1.MigrationFailed, "the VM sleeps")

	w.sleptAt("b", uid)
	w.gone(pod)
	pod = w.bound(podOf(s, "gone-asleep"), "c")
	w.comes(pod, "c", uid)
	w.sleptAt("c", uid)
	w.gone(pod)
	if err := w.api.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the record ends with its Sandbox", func() (bool, error) {
		_, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed(pods.SandboxRecord("default", uid))})
		return errdefs.IsNotFound(err), err
	})
}

// A node dies while a VM wakes there. The pod there holds the name of the next one, and its kubelet never says that it
// has ended.
func TestNodeDiesUnderAWake(t *testing.T) {
	w := newWorld(t)
	w.create("waking")
	w.sleeps("waking")
	w.hang(nodev1.Phase_PHASE_TRANSFERRING, true)
	w.wants("waking", `"operatingMode":"Running"`)
	w.phase("waking", nodev1.Kind_KIND_WAKE, nodev1.Phase_PHASE_TRANSFERRING)
	w.dies("a")
	w.hang(nodev1.Phase_PHASE_TRANSFERRING, false)
	taint := []byte(`{"spec":{"taints":[{"key":"godwit.dev/fenced","effect":"NoSchedule"}]}}`)
	if err := w.api.Patch(t.Context(), worker("a"), client.RawPatch(types.MergePatchType, taint)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := w.api.Patch(context.WithoutCancel(t.Context()), worker("a"), client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"taints":null}}`)))
		if err != nil && !store.IsAbsent(err) {
			t.Error(err)
		}
	})
	w.running("waking", "b")
}
