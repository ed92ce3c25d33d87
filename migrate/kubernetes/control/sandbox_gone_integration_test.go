//go:build integration

package control

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"
)

// The VM of a Sandbox whose record is taken away by force while it sleeps does not boot. It wakes with its memory when
// somebody puts the record back from a copy.
func TestSandboxWhoseRecordIsTakenAway(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	s := w.sandbox("bereft")
	uid := string(s.GetUID())
	first := w.bound(podOf(s, "bereft"), "a")
	w.comes(first, "a", uid)
	w.suspends("bereft", "Suspended")
	w.leaves(first, "a", uid)
	kept := &v1alpha1.VMRecord{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Name: pods.SandboxRecord("default", uid)}, kept); err != nil {
		t.Fatal(err)
	}
	forced := kept.DeepCopy()
	forced.Finalizers = nil
	if err := w.api.Update(t.Context(), forced); err != nil {
		t.Fatal(err)
	}
	if err := w.api.Delete(t.Context(), forced); err != nil {
		t.Fatal(err)
	}
	w.suspends("bereft", "Running")
	second := w.bound(podOf(s, "bereft"), "b")
	if resp, err := w.resolve(second, "b"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "put the record back") {
		t.Errorf("it is resolved as %v, %v", resp, err)
	}
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(kept), &v1alpha1.VMRecord{}); !store.IsAbsent(err) {
		t.Errorf("it has a new record: %v", err)
	}
	kept.ResourceVersion, kept.UID = "", ""
	if err := w.api.Create(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	w.comes(second, "b", uid)
}

// What says that a Sandbox had a record ends with that Sandbox, also if the record was taken away by force before.
func TestNoteOfASandboxThatIsGone(t *testing.T) {
	installSandboxes(t)
	w := newWorld(t)
	stays, gone := string(w.sandbox("bereft-too").GetUID()), "3f0c6f0e-0000-4000-8000-000000000002"
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		t.Fatal(err)
	}
	for uid, name := range map[string]string{stays: "bereft-too", gone: "bereft-too-2"} {
		if err := st.Note(t.Context(), operator.KindSandbox, uid,
			operator.SandboxNote(pods.SandboxRecord("default", uid), name)); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Eventually(t, "the note of a Sandbox that is gone ends", func() (bool, error) {
		_, there, err := st.NoteOf(t.Context(), operator.KindSandbox, gone)
		return !there && err == nil, err
	})
	if _, there, err := st.NoteOf(t.Context(), operator.KindSandbox, stays); !there || err != nil {
		t.Errorf("the note of the Sandbox that is there: %v", err)
	}
}
