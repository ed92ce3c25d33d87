//go:build integration

package control

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// classAt is a class with keys of a Secret that seal, or without.
func classAt(name, repository, secret string) *v1alpha1.VMSnapshotClass {
	c := &v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.VMSnapshotClassSpec{
		Repository: repository, AllowedNamespaces: &metav1.LabelSelector{}}}
	if secret != "" {
		c.Spec.SealSecretRef = &v1alpha1.SecretRef{Namespace: apitest.System, Name: secret}
	}
	return c
}

func (w *world) put(o client.Object) {
	w.t.Helper()
	if err := w.api.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) drop(o client.Object) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// A VM whose record has no word of sealing gets no keys, also once a class of its repository has some. Neither class
// takes anything new then. A snapshot that was ordered sealed elsewhere is sealed or is not made. What became of its
// class and its order has no say.
func TestKeysByTheWord(t *testing.T) {
	const at, elsewhere = "reg.example/words", "reg.example/words-else"
	w := newWorld(t)
	w.put(keySecret("words-seal", decide.TypeSealKeys, sealData("first")))
	plain := classAt("words", at, "")
	w.put(plain)
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "words", Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.SnapshotClassName, vm.Spec.NodeName = "words", "a"
	other := vm.DeepCopy()
	w.put(vm)
	w.running("words", "a")
	rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default.words")})
	if err != nil || rec.GetSealed() {
		t.Fatalf("record %v, %v", rec, err)
	}
	gets := func(what, repository string, keys int) {
		t.Helper()
		got, err := asking{w, "a"}.asks(repository, nodev1.Use_USE_CONTENT)
		if err != nil || len(got.GetSealKeys()) != keys {
			t.Errorf("%s: %d keys, %v, want %d", what, len(got.GetSealKeys()), err, keys)
		}
	}
	safe := classAt("words-safe", at, "words-seal")
	w.put(safe)
	gets("a VM of before the class with keys", at+"/"+rec.GetUid(), 0)
	if _, err := (asking{w, "a"}).asks(at+"/"+rec.GetUid(), nodev1.Use_USE_UNSPECIFIED); err != nil {
		t.Errorf("a node that knows no keys: %v", err)
	}
	other.Name = "words-b"
	w.put(other)
	w.until("words-b", "waits", func(vm *v1alpha1.VirtualMachine) bool {
		c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
		return c != nil && c.Reason == string(decide.ReasonClassUnsupported) && strings.Contains(c.Message, safe.Name)
	})
	w.drop(safe.DeepCopy())
	w.running("words-b", "a")

	w.halt(true)
	order := &v1alpha1.VMSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: decide.OrderName("words-1"),
		Labels: map[string]string{pods.LabelVM: "words", pods.LabelRecordUID: rec.GetUid()}}}
	order.Spec.SnapshotRef = v1alpha1.NamespacedRef{Namespace: "default", Name: "s", UID: "words-1"}
	order.Spec.Source = v1alpha1.ContentSource{NodeName: "a",
		PodRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "p", UID: "p-1"}}
	order.Spec.Repository = elsewhere
	order.Spec.Sealed = true
	w.put(order)
	open := &nodev1.OpenRequest{Vm: rec.GetVm(), Uid: rec.GetUid(), Operation: &nodev1.Operation{Id: "words-1",
		Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1, Generation: rec.GetGeneration(), Source: "a", Prefix: elsewhere,
		Repository: elsewhere + "/" + rec.GetUid(), Manual: true, Tag: record.SnapshotTag(rec.GetGeneration(), "words-1", 1)}}
	if _, err := w.records.Open(t.Context(), open); err != nil {
		t.Fatal(err)
	}
	w.noKeys("an order whose class is gone", elsewhere+"/"+rec.GetUid(), "spec.sealSecretRef", elsewhere)
	again := classAt("words-else", elsewhere, "")
	w.put(again)
	w.noKeys("an order whose class was made without keys", elsewhere+"/"+rec.GetUid(), "spec.sealSecretRef", elsewhere)
	third := classAt("words-third", elsewhere, "")
	third.Spec.PullSecretRef = &v1alpha1.SecretRef{Namespace: apitest.System, Name: "words-login"}
	third.Spec.AllowedNamespaces = nil
	w.put(third)
	w.noKeys("and another one has a login", elsewhere+"/"+rec.GetUid(), "spec.sealSecretRef", elsewhere)
	w.drop(third)
	w.drop(again)
	w.put(classAt("words-else", elsewhere, "words-seal"))
	gets("an order with its class", elsewhere+"/"+rec.GetUid(), 1)
	w.drop(order)
	w.noKeys("an order that is gone", elsewhere+"/"+rec.GetUid(), "words-1")
	w.halt(false)
	w.noOperation("words")
}

// A VM that has begun from a sealed snapshot of a removed VM is told which class is missing. Once that is there, its
// node gets the keys.
func TestKeysOfAHeldSnapshot(t *testing.T) {
	const at = "reg.example/words-held"
	w := newWorld(t)
	w.put(keySecret("held-seal", decide.TypeSealKeys, sealData("first")))
	class := classAt("words-held", at, "held-seal")
	w.put(class.DeepCopy())
	vm := machine("held-src")
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.SnapshotClassName, vm.Spec.NodeName = class.Name, "a"
	w.put(vm)
	w.running("held-src", "a")
	snap := w.snapshot("held-nightly", "held-src")
	if c := w.orderOf(snap); !c.Spec.Sealed || c.Spec.Signed {
		t.Errorf("the order says %+v", c.Spec)
	}
	repository := at + "/" + string(vm.UID)
	w.delete(machine("held-src"))
	w.begins("held-next", "held-nightly")
	w.begun("held-next", snap)
	gets := func() {
		t.Helper()
		got, err := asking{w, "a"}.asks(repository, nodev1.Use_USE_CONTENT)
		if err != nil || len(got.GetSealKeys()) != 1 {
			t.Errorf("%d keys, %v", len(got.GetSealKeys()), err)
		}
	}
	gets()
	w.drop(class.DeepCopy())
	w.noKeys("without the class", repository, "spec.sealSecretRef", at)
	plain := classAt(class.Name, at, "")
	w.put(plain)
	w.noKeys("with a class without keys", repository, "spec.sealSecretRef", at)
	w.drop(plain)
	w.put(class)
	gets()
}

// halt has the captures of nodes stand still, or go on.
func (w *world) halt(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs[nodev1.Phase_PHASE_TRANSFERRING] = on
}

// noOperation waits until a VM has none.
func (w *world) noOperation(name string) {
	w.t.Helper()
	w.until(name, "has no operation", func(*v1alpha1.VirtualMachine) bool {
		rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed("default." + name)})
		return err == nil && rec.GetOperation() == nil
	})
}

// empty is a cache that knows nothing yet.
type empty struct{ client.Reader }

func (empty) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// strangers looks what is told of a sealed VM whose class is gone: nothing of its record, and to no object, where a
// node asks that does not have it. What the cache does not know is never "no keys".
func (w *world) strangers(repository string) {
	w.t.Helper()
	told := events.NewFakeRecorder(8)
	p := *w.asks()
	p.Events = told
	login := func(node string, use nodev1.Use) error {
		got, err := p.Login(controller.WithPeer(w.t.Context(), node), &nodev1.LoginRequest{Repository: repository, Use: use})
		if got != nil && err == nil {
			w.t.Errorf("node %q got an answer", node)
		}
		return err
	}
	for _, use := range []nodev1.Use{nodev1.Use_USE_CONTENT, nodev1.Use_USE_UNSPECIFIED} {
		if err := login("b", use); !errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "SecretRef") {
			w.t.Errorf("another node is told %v", err)
		}
	}
	if n := len(told.Events); n != 0 {
		w.t.Errorf("another node has made %d events", n)
	}
	if err := login("a", nodev1.Use_USE_CONTENT); !errdefs.IsUnavailable(err) || len(told.Events) != 1 {
		w.t.Errorf("its own node: %v, %d events", err, len(told.Events))
	}
	p.Cached = empty{p.Cached}
	for _, use := range []nodev1.Use{nodev1.Use_USE_CONTENT, nodev1.Use_USE_UNSPECIFIED} {
		if err := login("a", use); !errdefs.IsUnavailable(err) {
			w.t.Errorf("what the cache does not know: %v", err)
		}
	}
}
