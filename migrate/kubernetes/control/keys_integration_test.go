//go:build integration

package control

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// keyOf are 32 bytes that stand in no other text.
func keyOf(word string) []byte { return []byte((word + strings.Repeat("~", 32))[:32]) }

func keySecret(name string, of corev1.SecretType, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.System, Name: name}, Type: of, Data: data}
}

func sealData(words ...string) map[string][]byte {
	var text strings.Builder
	for _, w := range words {
		text.WriteString(base64.StdEncoding.EncodeToString(keyOf(w)) + "\n")
	}
	return map[string][]byte{decide.DataKeys: []byte(text.String())}
}

func signData(t *testing.T) map[string][]byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(keyOf("signing")))
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{decide.DataKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}
}

// asks has a node ask once what it may have in a repository: a node itself goes on to ask.
func (a asking) asks(repository string, use nodev1.Use) (*nodev1.LoginResponse, error) {
	return a.Login(a.w.t.Context(), &nodev1.LoginRequest{Repository: repository, Use: use})
}

// noKeys checks that node a gets no answer, and is to ask again.
func (w *world) noKeys(what, repository string, says ...string) {
	w.t.Helper()
	got, err := asking{w, "a"}.asks(repository, nodev1.Use_USE_CONTENT)
	if got != nil || !errdefs.IsUnavailable(err) {
		w.t.Errorf("%s: answered %t, %v", what, got != nil, err)
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			w.t.Errorf("%s: told %v, without %q", what, err, part)
		}
	}
}

// keyed makes a class with keys, and a VM of it that waits for them, until it runs on node a.
func (w *world) keyed(class *v1alpha1.VMSnapshotClass, sealed, signed *corev1.Secret) *v1alpha1.VirtualMachine {
	w.t.Helper()
	put := func(o client.Object) {
		w.t.Helper()
		if err := w.api.Create(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
	put(class)
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "keyed", Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.SnapshotClassName, vm.Spec.NodeName = "keyed", "a"
	put(vm)
	waits := func(says string) {
		w.t.Helper()
		w.until("keyed", "waits for its keys: "+says, func(vm *v1alpha1.VirtualMachine) bool {
			c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
			return c != nil && c.Reason == string(decide.ReasonClassSecret) && strings.Contains(c.Message, says)
		})
	}
	waits("spec.sealSecretRef: Secret godwit-system/keyed-seal does not exist")
	put(keySecret(sealed.Name, corev1.SecretTypeOpaque, sealed.Data)) // as the one of the CA is
	waits(`keyed-seal has type "Opaque" and not godwit.dev/seal-keys`)
	if err := w.api.Delete(w.t.Context(), sealed.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	put(sealed)
	waits("spec.signSecretRef: Secret godwit-system/keyed-sign does not exist")
	if all := w.pods("keyed"); len(all) != 0 {
		w.t.Errorf("%d pods", len(all))
	}
	put(signed)
	w.running("keyed", "a")
	return vm
}

// A VM of a class with keys waits for the Secrets. Then its node, and no other, gets them in memory: for what it makes
// and reads, also after they were changed. A Secret that is missing or cannot be read is never "no key", and neither is
// a class that is gone. No object, event or line of the log has one.
func TestKeysOfAClass(t *testing.T) {
	log := &lockedLog{}
	w := newWorld(t, func(w *world) { w.log = log })
	ref := func(name string) *v1alpha1.SecretRef {
		return &v1alpha1.SecretRef{Namespace: apitest.System, Name: name}
	}
	class := &v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "keyed"}, Spec: v1alpha1.VMSnapshotClassSpec{
		Repository: "reg.example/keyed", AllowedNamespaces: &metav1.LabelSelector{}, SealSecretRef: ref("keyed-seal"),
		SignSecretRef: ref("keyed-sign")}}
	sealed := keySecret("keyed-seal", decide.TypeSealKeys, sealData("first"))
	signed := keySecret("keyed-sign", decide.TypeSignKey, signData(t))
	vm := w.keyed(class.DeepCopy(), sealed, signed)
	repository := "reg.example/keyed/" + string(vm.UID)
	rec, err := w.records.Get(t.Context(), &nodev1.GetRequest{Vm: vmNamed("default.keyed")})
	if err != nil || !rec.GetSealed() || !rec.GetSigned() {
		t.Errorf("record %v, %v", rec, err)
	}

	a, b := asking{w, "a"}, asking{w, "b"}
	lock := func() (*seal.Locks, []seal.Locked) {
		t.Helper()
		got, err := a.asks(repository, nodev1.Use_USE_CONTENT)
		if err != nil {
			t.Fatal(err)
		}
		locks, err := seal.Locks{}.Under(got.GetSealKeys())
		if err == nil {
			_, err = sign.Trust{}.Under(got.GetSignKey(), got.GetSignTrusted())
		}
		if err != nil {
			t.Fatal(err)
		}
		list, err := locks.Lock(seal.NewKey())
		if err != nil {
			t.Fatal(err)
		}
		return &locks, list
	}
	before, old := lock()
	sealed.Data = sealData("second", "first")
	if err := w.api.Update(t.Context(), sealed); err != nil {
		t.Fatal(err)
	}
	after, made := lock()
	if _, err := after.Unlock(old); err != nil {
		t.Errorf("what was made before the Secret was changed: %v", err)
	}
	if _, err := before.Unlock(made); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the keys of before open what was made after: %v", err)
	}

	got, err := a.asks(repository, nodev1.Use_USE_STORE)
	if err != nil || len(got.GetSealKeys())+len(got.GetSignKey()) > 0 {
		t.Errorf("to look or delete: %d keys, %v", len(got.GetSealKeys()), err)
	}
	if got, err := a.asks(repository, nodev1.Use_USE_UNSPECIFIED); got != nil || !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "upgrade the node") {
		t.Errorf("a node that knows no keys: %t, %v", got != nil, err)
	}
	for who, node := range map[string]asking{"another node": b, "the administrator's host": {w, ""}} {
		if got, err := node.asks(repository, nodev1.Use_USE_CONTENT); got != nil || !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %t, %v", who, got != nil, err)
		}
	}
	for _, name := range []string{"keyed-seal", "keyed-sign"} { // the first read fails, and the second one
		w.mu.Lock()
		w.noSecret = name
		w.mu.Unlock()
		w.noKeys("while Secret "+name+" cannot be read", repository, "VMSnapshotClass keyed")
	}
	w.mu.Lock()
	w.noSecret = ""
	w.mu.Unlock()
	w.withoutASecret(sealed, repository)
	w.withoutItsClass(class, rec, repository)
	lock()

	w.wants("keyed", `"operatingMode":"Hibernated"`)
	w.until("keyed", "sleeps", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Phase == v1alpha1.VMHibernated
	})
	if got, err := a.asks(repository, nodev1.Use_USE_CONTENT); got != nil || !errdefs.IsPermissionDenied(err) {
		t.Errorf("the node that had the VM: %t, %v", got != nil, err)
	}
	words := []string{string(keyOf("first")), string(keyOf("second"))}
	for _, data := range []map[string][]byte{sealData("first"), sealData("second"), signData(t)} {
		for _, text := range data {
			for line := range strings.Lines(string(text)) {
				if !strings.HasPrefix(line, "-----") {
					words = append(words, strings.TrimSpace(line))
				}
			}
		}
	}
	w.nowhere(log.String(), words...)
}

// withoutASecret deletes one, looks what its node is told, and makes it again.
func (w *world) withoutASecret(secret *corev1.Secret, repository string) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), secret.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	w.noKeys("without the Secret", repository, "spec.sealSecretRef: Secret godwit-system/keyed-seal does not exist")
	w.lastTold("keyed", "Secret godwit-system/keyed-seal does not exist")
	for what, data := range map[string]map[string][]byte{"an empty Secret": nil, "an empty key": {decide.DataKeys: nil},
		"a short key": {decide.DataKeys: []byte("c2hvcnQ=")}} {
		bad := keySecret(secret.Name, secret.Type, data)
		if err := w.api.Create(w.t.Context(), bad); err != nil {
			w.t.Fatal(err)
		}
		w.noKeys(what, repository, "has a key keys that is not")
		if err := w.api.Delete(w.t.Context(), bad); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.api.Create(w.t.Context(), keySecret(secret.Name, secret.Type, secret.Data)); err != nil {
		w.t.Fatal(err)
	}
}

// withoutItsClass deletes the class of a VM, has another one in its place, and makes it again. A work order to a place
// without a class gets no keys either.
func (w *world) withoutItsClass(class *v1alpha1.VMSnapshotClass, rec *nodev1.Record, repository string) {
	w.t.Helper()
	fresh := func(change func(*v1alpha1.VMSnapshotClass)) *v1alpha1.VMSnapshotClass {
		c := class.DeepCopy()
		change(c)
		if err := w.api.Create(w.t.Context(), c); err != nil {
			w.t.Fatal(err)
		}
		return c
	}
	if err := w.api.Delete(w.t.Context(), class.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	w.noKeys("without the class", repository, "spec.sealSecretRef", "spec.repository reg.example/keyed")
	if _, err := (asking{w, "a"}).asks(repository, nodev1.Use_USE_UNSPECIFIED); !errdefs.IsUnavailable(err) {
		w.t.Errorf("a node that knows no keys, without the class: %v", err)
	}
	w.strangers(repository)
	if _, err := (asking{w, "a"}).asks(repository, nodev1.Use_USE_STORE); err != nil {
		w.t.Errorf("to look or delete without the class: %v", err)
	}
	for what, change := range map[string]func(*v1alpha1.VMSnapshotClass){
		"a class without keys": func(c *v1alpha1.VMSnapshotClass) {
			c.Spec.SealSecretRef, c.Spec.SignSecretRef = nil, nil
		},
		"a class that signs alone": func(c *v1alpha1.VMSnapshotClass) { c.Spec.SealSecretRef = nil },
		"a class that seals alone": func(c *v1alpha1.VMSnapshotClass) { c.Spec.SignSecretRef = nil },
	} {
		c := fresh(change)
		w.noKeys(what, repository, "its class had spec.s")
		if err := w.api.Delete(w.t.Context(), c); err != nil {
			w.t.Fatal(err)
		}
	}
	fresh(func(*v1alpha1.VMSnapshotClass) {})

	w.halt(true)
	const gone = "reg.example/keyed-gone"
	open := &nodev1.OpenRequest{Vm: rec.GetVm(), Uid: rec.GetUid(), Operation: &nodev1.Operation{Id: "keyed-1",
		Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1, Generation: rec.GetGeneration(), Source: "a", Prefix: gone,
		Repository: gone + "/" + rec.GetUid(), Manual: true, Tag: record.SnapshotTag(rec.GetGeneration(), "keyed-1", 1)}}
	if _, err := w.records.Open(w.t.Context(), open); err != nil {
		w.t.Fatal(err)
	}
	w.noKeys("an order that there is not", gone+"/"+rec.GetUid(), "the work order of operation keyed-1 is gone")
	w.put(classAt("keyed-gone", gone, ""))
	w.noKeys("and a class of that place", gone+"/"+rec.GetUid(), "the work order of operation keyed-1 is gone")
	w.halt(false)
	w.noOperation("keyed")
}
