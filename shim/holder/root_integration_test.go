//go:build integration

package holder

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/shim/proc"
)

// Who takes the root of a task's process for the container's, as `nerdctl cp` does, finds
// nothing of the host there but a word on where the files are, and can write nothing.
func TestRootShowsNothingOfTheHost(t *testing.T) {
	var held proc.ID
	if err := Start(t.Context(), os.Args[0], Namespace{New: true}, func(id proc.ID) error { held = id; return nil }); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	root := fmt.Sprintf("/proc/%d/root", held.PID)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{noticeName}, names); diff != "" {
		t.Errorf("the holder's root (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile(root + "/" + noticeName); err != nil || !strings.Contains(string(text), "nerdctl exec") {
		t.Errorf("the notice says %q, %v", text, err)
	}
	if err := os.WriteFile(root+"/x", nil, 0o600); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("write to the holder's root: %v", err)
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", held.PID)); err != nil || cwd != "/" {
		t.Errorf("the holder's directory is %s, %v", cwd, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/cwd/etc", held.PID)); err == nil {
		t.Error("the holder's directory is the host's root")
	}
}
