//go:build integration

package crash

import (
	"errors"
	"testing"
)

// What containerd starts to clean up after a shim is killed here before it has done anything. The same happens on a
// host that is too busy for it: the VM is freed all the same.
func TestCrashOfDelete(t *testing.T) {
	l := newTaskWorld(t, "[timeouts]\n  'io.containerd.timeout.shim.cleanup' = '1ms'\n")
	ctx := t.Context()
	a := &taskRun{taskWorld: l}
	if err := a.runs(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.kill(ctx, shimProcess); err != nil {
		t.Fatal(err)
	}
	_, err := a.end(ctx, false)
	if err = errors.Join(err, l.clean(ctx)); err != nil {
		t.Fatal(errors.Join(err, l.Logs()))
	}
}
