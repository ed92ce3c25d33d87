//go:build integration

package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// sandboxClaims are what the sandbox API of the shim relies on.
var sandboxClaims = []string{
	"CreateSandbox POD mounts 0 annotations 0 config.json false netns true runtime.v1.PodSandboxConfig ",
	"Create web mounts 1 tmpfs /dev/shm\n", // none of the pod's own files
	"ShutdownSandbox POD\n",
}

// TestSandboxCalls: what containerd's CRI plugin asks of the shim of a runtime handler with sandboxer = "shim", over
// the life of a pod. A test of the shim plays the recording.
func TestSandboxCalls(t *testing.T) {
	s := newSite(t, harness.Newest)
	s.shim = "sandbox"
	s.say("# Calls of the sandbox API by the CRI plugin of containerd %s", harness.Newest)
	failed := s.run(s.life("whole", "web"), func(name string, from int, err error) {
		s.say("  %s: %s", name, said(err))
		s.settle(from)
	})
	if failed != nil {
		t.Errorf("%s failed", failed.name)
	}
	text := s.text.String()
	for _, claim := range sandboxClaims {
		if !strings.Contains(text, claim) {
			t.Errorf("containerd made no call %q", claim)
		}
	}
	if *update && !t.Failed() {
		file := filepath.Join("testdata", "sandbox-api-"+string(harness.Newest)+".txt")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.end()
}
