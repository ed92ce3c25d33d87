package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/shim/journal"
)

// TestTwoPodsOfOneName: a second pod with the name that a pod's VM has is refused, with both ways out, also before the
// first one has a VMM. The first one's shim and journal stay. A sandbox that containerd has deleted stands in no way.
func TestTwoPodsOfOneName(t *testing.T) {
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web"}
	w.must("create", w.createPod())
	first, err := w.service.current()
	w.must("find VM", err)
	other, err := w.process()
	w.must("start process", err)
	j := *first.journal.Load()
	j.Shim = other // a shim of its own
	w.must("write", j.Write(first.dir))
	w.restart()
	err = errgrpc.ToNative(w.createPod())
	if !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("a second pod of that name: %v", err)
	}
	for _, names := range []string{"godwit.dev/vm", "pod team/web has VM team.web", "crictl rmp"} {
		if !strings.Contains(err.Error(), names) {
			t.Errorf("the answer does not name %q: %v", names, err)
		}
	}
	if now, err := journal.Read(first.dir); err != nil || now.Shim != other || !lives(other) {
		t.Errorf("the first one's shim lives: %v, its journal has %v, %v", lives(other), now, err)
	}
	second, err := os.MkdirTemp(filepath.Dir(j.Bundle), "bundle")
	w.must("make bundle", err)
	if pid, err := CleanUp(t.Context(), w.host(), first.dir, second); pid != 0 || err != nil {
		t.Errorf("containerd's delete of the second one: %d, %v", pid, err)
	}
	if now, err := journal.Read(first.dir); err != nil || now.Shim != other || !lives(other) {
		t.Errorf("after that the first one's shim lives: %v, its journal has %v, %v", lives(other), now, err)
	}
	w.must("delete the first one's bundle", os.RemoveAll(j.Bundle))
	w.restart()
	w.must("create again", w.createPod())
}
