package controller_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// While a controller that would admit claims is up, no store is restored. A controller that comes while the store
// waits keeps it from being settled, and is named.
func TestRestoreWithAnOldController(t *testing.T) {
	r := newRestored(t)
	onA := r.boot(web, "a")
	old := []string{"b"}
	r.whole.Unchecked = func() []string { return old }
	_, err := r.whole.Restore(t.Context(), &nodev1.RestoreRequest{})
	if !errors.Is(err, controller.ErrUnchecked) || !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "nodes b") {
		t.Fatalf("with an old controller: %v", err)
	}
	r.boot(web, "a") // nothing has begun
	old = nil
	r.restore()
	old = []string{"b"}
	r.report("a", held(onA, "OWN"))
	r.report("b")
	r.report("c")
	if s := r.settle(); !s.GetWaiting() || !slices.Equal(s.GetMissing(), []string{"b"}) {
		t.Fatalf("settled with an old controller: %v", s)
	}
	old = nil
	if s := r.settle(); s.GetWaiting() {
		t.Fatalf("%v", s)
	}
}
