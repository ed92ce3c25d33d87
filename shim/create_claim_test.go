package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A boot on the node that owns the VM already is a claim of its own: a Disown that was
// meant for the task before misses it, and a Create that fails gives it up.
func TestBootClaimsAnew(t *testing.T) {
	t.Run("a late end of ownership", func(t *testing.T) {
		w := newWorld(t)
		w.records.rec.Owner, w.records.rec.Generation = &nodev1.Owner{Node: "a"}, 5
		w.must("create", w.create())
		if _, err := w.records.Disown(t.Context(), &nodev1.DisownRequest{Node: "a", Generation: 5}); err == nil {
			t.Error("a Disown of the task before took the VM from the new one")
		}
		vm, _ := w.service.current()
		if vm.journal.Load().Generation != 6 || w.records.rec.GetGeneration() != 6 {
			t.Errorf("journal %d, record %d, want 6", vm.journal.Load().Generation, w.records.rec.GetGeneration())
		}
		w.must("delete", w.delete())
		if w.records.rec.GetOwner().GetNode() != "" {
			t.Errorf("owner %v after delete", w.records.rec.GetOwner())
		}
	})
	t.Run("the ownership ends in between", func(t *testing.T) {
		w := newWorld(t)
		w.records.rec.Owner, w.records.rec.Generation = &nodev1.Owner{Node: "a"}, 5
		w.records.refuseOwn = true // as after a Disown: the generation seen is over
		if err := errgrpc.ToNative(w.create()); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("boots without an owner: %v", err)
		}
		w.nothingLeft()
	})
}

// A container that is marked with the snapshot its VM left in boots fresh only if
// the records know that snapshot.
func TestMarkedContainer(t *testing.T) {
	const digest = "sha256:aa"
	create := func(w *world) error {
		dir := w.bundle().GetBundle()
		file := filepath.Join(dir, "config.json")
		data, err := os.ReadFile(file)
		w.must("read", err)
		text := strings.Replace(string(data), "{", `{"annotations":{"godwit.dev/digest":"`+digest+`"},`, 1)
		w.must("write", os.WriteFile(file, []byte(text), 0o600))
		_, err = w.service.Create(ctxNS(w.t), &taskapi.CreateTaskRequest{ID: "vm", Bundle: dir})
		return errgrpc.ToNative(err)
	}
	w := newWorld(t)
	if err := create(w); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), digest) {
		t.Fatalf("empty records: %v", err)
	}
	w.nothingLeft()
	w.records.rec.Spent = []string{digest}
	w.must("create", create(w))
	vm, _ := w.service.current()
	if s := vm.journal.Load().Spec; len(s.Annotations) != 0 || len(s.Container.OCI.Annotations) != 0 {
		t.Errorf("the mark travels: %v, %v", s.Annotations, s.Container.OCI.Annotations)
	}
}
