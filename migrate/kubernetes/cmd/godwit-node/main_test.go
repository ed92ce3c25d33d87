package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A node without a name would take no orders, unsaid.
func TestNodeNeedsAName(t *testing.T) {
	t.Setenv("GODWIT_CONFIG", "")
	err := run(t.Context(), settings{kubeconfig: "none", namespace: "default"})
	if err == nil || !strings.Contains(err.Error(), "--node") {
		t.Errorf("%v", err)
	}
}

// The program's flags are its own: with the framework's in one set, it would end before it begins.
func TestProgramStarts(t *testing.T) {
	program := filepath.Join(t.TempDir(), "godwit-node")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	run := exec.CommandContext(t.Context(), program, "-kubeconfig", "none", "-node", "a")
	out, err := run.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "way to the API server: --kubeconfig") {
		t.Errorf("%v: %s", err, out)
	}
}
