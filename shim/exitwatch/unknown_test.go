package exitwatch

import (
	"context"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/internal/fdtest"
	"godwit.dev/godwit/shim/proc"
)

// A node without descriptors can neither read a journal nor wait for a process: no shim is called
// dead for that, and each death is told once there are some again.
func TestWatchWithoutDescriptors(t *testing.T) {
	before := pause
	t.Cleanup(func() { pause = before })
	ns := filepath.Join(t.TempDir(), "default")
	id, kill := process(t)
	note(t, filepath.Join(ns, "read"), id)
	note(t, filepath.Join(ns, "waited"), id)
	died := make(chan string, 2)
	w := &watcher{died: func(_, id string) { died <- id }, watched: map[string]proc.ID{}}
	paused, go2 := make(chan struct{}), make(chan struct{})
	pause = func(context.Context) bool { paused <- struct{}{}; <-go2; return true }
	restore := fdtest.Exhaust(t, 0)
	w.watchShim(t.Context(), filepath.Join(ns, "read"), true)
	<-paused
	restore()
	restore = fdtest.Exhaust(t, 1) // a journal can be read, and no process be waited for
	w.wait.Go(func() { w.await(t.Context(), filepath.Join(ns, "waited"), id) })
	<-paused
	select {
	case vm := <-died:
		t.Errorf("the shim of %s, which lives, is called dead", vm)
	default:
	}
	restore()
	kill()
	close(go2)
	told := map[string]bool{<-died: true, <-died: true}
	if !told["read"] || !told["waited"] {
		t.Errorf("died: %v", told)
	}
	w.wait.Wait()
}
