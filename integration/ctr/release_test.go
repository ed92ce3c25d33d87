//go:build integration

package ctr

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// TestReleases is what the other tests show with the newest containerd, in short, with
// every release: its questions to the shim's program, a task's calls, a restart.
func TestReleases(t *testing.T) {
	for _, release := range harness.Releases {
		t.Run(string(release), func(t *testing.T) {
			h := harness.New(t, harness.Options{Images: true, Release: release})
			n := h.Node(0)
			n.CheckClean(t)
			if out := n.Ctr(t, "version"); strings.Count(out, string(release)) != 2 {
				t.Fatalf("containerd and ctr are not %s: %s", release, out)
			}
			testInfo(t, n)
			events := watchEvents(t, n)
			detached(t, n, images.Busybox, "vm", "sh", "-c", echo)
			testBootstrap(t, n)
			ctr(t, n, strings.NewReader("line\n"), execArgs("vm", "cat", "cat; exit 42")...).want(t,
				result{out: "line\n", code: 42})
			testObserve(t, n)
			testPause(t, n)
			checkEvents(t, events, "vm", "/tasks/create", "/tasks/start", "/tasks/paused", "/tasks/resumed")
			testRestart(t, n)
			events = watchEvents(t, n)
			testEnd(t, n, events)
		})
	}
}

// testInfo: containerd asks for the runtime's name and options before each task.
func testInfo(t *testing.T, n *harness.Node) {
	t.Helper()
	out := n.Ctr(t, "plugins", "inspect-runtime", "--runtime", runtimeName)
	var info struct {
		Name        string
		Annotations map[string]string
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil || info.Name != runtimeName ||
		info.Annotations["containerd.io/runtime-allow-mounts"] == "" {
		t.Errorf("runtime info %s: %+v, %v", out, info, err)
	}
}

// testBootstrap: what start has answered is what containerd keeps.
func testBootstrap(t *testing.T, n *harness.Node) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Dir, "state", "io.containerd.runtime.v2.task", "default", "vm",
		"bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Version           int
		Address, Protocol string
	}
	if err := json.Unmarshal(data, &answer); err != nil || answer.Version != 3 || answer.Protocol != "ttrpc" ||
		!strings.HasPrefix(answer.Address, "unix:///") {
		t.Errorf("bootstrap answer %s: %v", data, err)
	}
}
