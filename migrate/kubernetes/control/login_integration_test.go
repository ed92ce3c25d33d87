//go:build integration

package control

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	ocidigest "github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/snapshot/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The passwords of a registry, and their bcrypt: tests need no tool for it.
const (
	first, second = "first-of-two-words", "second-of-two-words"
	firstHash     = "$2a$05$RpoeGKaIPXvAVkEWwqssJ.SdzpswC/QC8ns4pYPeTZra50cbxgvmu"
	secondHash    = "$2a$05$xF.NKRpsMgdYZIY4nMUobOkF11RHw9J/6zPzPsVUzZgzGzPuQ90ee"
)

// guarded is a real registry that wants a login. Again changes its one password.
func guarded(t *testing.T) (host string, again func(hash string)) {
	t.Helper()
	dir, address := t.TempDir(), apitest.FreeAddress(t)
	passwords := filepath.Join(dir, "htpasswd")
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "registry.yml"), fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: "+
		"{rootdirectory: %s/data}}\nhttp: {addr: '%s'}\nauth: {htpasswd: {realm: r, path: %s}}\n", dir, address, passwords))
	stop := func() {}
	again = func(hash string) {
		stop()
		write(passwords, "godwit:"+hash+"\n")
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "../../../bin/tools/registry", "serve",
			filepath.Join(dir, "registry.yml"))
		cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
		apitest.Eventually(t, "the registry answers", func() (bool, error) {
			resp, err := http.Get("http://" + address + "/v2/")
			if err != nil {
				return false, nil
			}
			return resp.StatusCode == http.StatusUnauthorized, resp.Body.Close()
		})
	}
	t.Cleanup(func() { stop() })
	again(firstHash)
	return address, again
}

// asking is a node that asks the operator.
type asking struct {
	w    *world
	node string
}

func (a asking) Login(ctx context.Context, r *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	return a.w.asks().Login(controller.WithPeer(ctx, a.node), r)
}

// pushes has a node store something, and read it again, as a push and a pull do: each asks for the login.
func (a asking) pushes(repository, text string) error {
	ctx := a.w.t.Context()
	cfg := store.Config{Repository: repository, PlainHTTP: true, DockerConfig: a.w.t.TempDir()}
	data := []byte(text)
	o := ocidigest.FromBytes(data)
	for _, do := range []func(store.Store) error{
		func(st store.Store) error { return st.Put(ctx, store.Blob(o), store.Bytes(data, o)) },
		func(st store.Store) error { _, err := store.ReadBlob(ctx, st, o, int64(len(data))); return err },
	} {
		with, err := cfg.WithLogin(ctx, a, nodev1.Use_USE_CONTENT)
		if err != nil {
			return err
		}
		st, err := store.Open(with)
		if err != nil {
			return err
		}
		if err := do(st); err != nil {
			return err
		}
	}
	return nil
}

// refused asks for a login that cannot be had now, and tells why. It asks once: a node goes on to ask.
func (a asking) refused(repository string) error {
	login, err := a.Login(a.w.t.Context(), &nodev1.LoginRequest{Repository: repository})
	if login.GetPassword() != "" {
		a.w.t.Errorf("node %s got a login for %s", a.node, repository)
	}
	return err
}

func loginSecret(namespace, host, password string) *corev1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte("godwit:" + password))
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "registry"},
		Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil,
			`{"auths":{%q:{"auth":%q}}}`, host, auth)}}
}

// A VM of a class with a login waits for the Secret and says what is wrong. Then its node, and no other, pushes and
// pulls with it, also after it was changed. The password is in no object, event or line of the operator's log.
func TestLoginOfAClass(t *testing.T) {
	log := &lockedLog{}
	w := newWorld(t, func(w *world) { w.log = log })
	host, again := guarded(t)
	put := func(o client.Object) {
		t.Helper()
		if err := w.api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	put(&v1alpha1.VMSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "locked"}, Spec: v1alpha1.VMSnapshotClassSpec{
		Repository: host + "/locked", AllowedNamespaces: &metav1.LabelSelector{},
		PullSecretRef: &v1alpha1.SecretRef{Namespace: apitest.System, Name: "registry"}}})
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "locked", Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.SnapshotClassName, vm.Spec.NodeName = "locked", "a"
	put(vm)
	waits := func(says ...string) {
		t.Helper()
		w.until("locked", "waits for its login: "+strings.Join(says, " "), func(vm *v1alpha1.VirtualMachine) bool {
			c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing)
			for _, part := range append(says, "spec.snapshotClassName", "VMSnapshotClass locked") {
				if c == nil || c.Reason != string(decide.ReasonClassSecret) || !strings.Contains(c.Message, part) {
					return false
				}
			}
			return true
		})
	}
	waits("Secret godwit-system/registry does not exist", "kubectl create secret docker-registry")
	w.told("locked", string(decide.ReasonClassSecret))
	secret := loginSecret(apitest.System, "other.example", first)
	put(secret)
	waits("no login for "+strings.Split(host, "/")[0], ".dockerconfigjson")
	if all := w.pods("locked"); len(all) != 0 {
		t.Errorf("%d pods", len(all))
	}
	change := func(to *corev1.Secret) {
		t.Helper()
		secret.Data = to.Data
		if err := w.api.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	change(loginSecret(apitest.System, host, first))
	w.running("locked", "a")
	a, b := asking{w, "a"}, asking{w, "b"}
	repository := host + "/locked/" + string(vm.UID)
	if err := a.pushes(repository, "1"); err != nil {
		t.Fatalf("push with the login of the class: %v", err)
	}
	if err := (asking{w, "a"}).pushes(host+"/open/"+string(vm.UID), "1"); !errdefs.IsUnauthorized(err) {
		t.Errorf("push without a login: %v", err)
	}

	for name, err := range map[string]error{
		"another node": b.pushes(repository, "2"), "the administrator's host": (asking{w, ""}).pushes(repository, "2"),
		"a node's name and more": (asking{w, "a "}).pushes(repository, "2"),
	} {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "locked-b", Namespace: "default"}}
	other.Spec = *vm.Spec.DeepCopy()
	other.Spec.NodeName = "b"
	put(other)
	w.running("locked-b", "b")
	if err := b.pushes(repository, "2"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a node with another VM of the class: %v", err)
	}
	// A VM without a class, whose node has always stored there: its own login counts, and it gets no other.
	own := vm.DeepCopy()
	own.ObjectMeta = metav1.ObjectMeta{Name: "unclassed", Namespace: "default"}
	own.Spec.SnapshotClassName = ""
	put(own)
	w.running("unclassed", "a")
	unclassed := host + "/locked/" + string(own.UID)
	if err := a.refused(unclassed); err != nil {
		t.Errorf("a VM that has no class is refused its own node's place: %v", err)
	}
	if err := a.pushes(unclassed, "1"); !errdefs.IsUnauthorized(err) {
		t.Errorf("push of a VM without a class got a login: %v", err)
	}
	for _, of := range []string{host + "/locked", host + "/locked/" + string(vm.UID) + "/x", host + "/locked/locked"} {
		if login, err := a.Login(t.Context(), &nodev1.LoginRequest{Repository: of}); login.GetPassword() != "" {
			t.Errorf("a login for %s: %v", of, err)
		}
	}

	again(secondHash)
	if err := a.pushes(repository, "3"); !errdefs.IsUnauthorized(err) {
		t.Errorf("push with the login of before: %v", err)
	}
	change(loginSecret(apitest.System, host, second))
	if err := a.pushes(repository, "3"); err != nil {
		t.Errorf("push after the Secret was changed: %v", err)
	}

	w.mu.Lock()
	w.noSecrets = true
	w.mu.Unlock()
	if err := a.refused(repository); !errdefs.IsUnavailable(err) {
		t.Errorf("push while the API server does not answer: %v", err)
	}
	w.mu.Lock()
	w.noSecrets = false
	w.mu.Unlock()
	if err := w.api.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := a.refused(repository); !errdefs.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "VMSnapshotClass locked has spec.pullSecretRef: Secret godwit-system/registry") {
		t.Errorf("push without the Secret: %v", err)
	}
	w.lastTold("locked", "Secret godwit-system/registry does not exist")

	class := &v1alpha1.VMSnapshotClass{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Name: "locked"}, class); err != nil {
		t.Fatal(err)
	}
	class.Spec.PullSecretRef.Namespace = "default"
	put(loginSecret("default", host, second))
	if err := w.api.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	if err := a.refused(repository); !errdefs.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "may not be read by godwit-operator") {
		t.Errorf("push with a Secret that the operator may not read: %v", err)
	}
	class.Spec.PullSecretRef.Namespace = apitest.System
	if err := w.api.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	put(loginSecret(apitest.System, host, second))
	w.wants("locked", `"operatingMode":"Hibernated"`)
	w.until("locked", "sleeps", func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Phase == v1alpha1.VMHibernated })
	if err := a.pushes(repository, "6"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the node that had the VM: %v", err)
	}
	w.nowhere(log.String(), first, second)
}

// nowhere looks for words in all objects that are no Secrets, and in a log.
func (w *world) nowhere(log string, words ...string) {
	w.t.Helper()
	for _, word := range words { // as they are in a Secret
		words = append(words, base64.StdEncoding.EncodeToString([]byte("godwit:"+word)))
	}
	kinds, err := server.Kubectl(w.t.Context(), "", "api-resources", "--verbs=list", "-o", "name")
	if err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for _, kind := range strings.Fields(kinds) {
		if kind != "secrets" {
			all = append(all, kind)
		}
	}
	text, err := server.Kubectl(w.t.Context(), "", "get", strings.Join(all, ","), "-A", "-o", "yaml")
	if err != nil || !strings.Contains(text, "kind: VMRecord") || !strings.Contains(text, "ClassSecretUnusable") {
		w.t.Fatalf("%d bytes of objects, without records and events: %v", len(text), err)
	}
	if log == "" {
		w.t.Error("the operator has no log")
	}
	for _, word := range words {
		if strings.Contains(text, word) || strings.Contains(log, word) {
			w.t.Errorf("%q is in an object, an event or the log", word)
		}
	}
}

// lockedLog is what an operator has logged.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lastTold waits for an event of a VM that says something.
func (w *world) lastTold(name, says string) {
	w.t.Helper()
	apitest.Eventually(w.t, "an event of VM "+name+" says "+says, func() (bool, error) {
		all := &eventsv1.EventList{}
		err := w.api.List(w.t.Context(), all, client.InNamespace("default"))
		return slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == name && e.Action == "Login" && strings.Contains(e.Note, says)
		}), err
	})
}
