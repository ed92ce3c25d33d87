package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// Where there is no way to the API server, the error names the flag.
func TestServerRefusals(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, file := range []string{"", filepath.Join(t.TempDir(), "none")} {
		if _, err := server(file); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("%q: %v", file, err)
		}
	}
}

// A node without a name would take no orders, unsaid.
func TestNodeNeedsAName(t *testing.T) {
	t.Setenv("GODWIT_CONFIG", "")
	if err := run(t.Context(), "", "none", "", "default"); err == nil || !strings.Contains(err.Error(), "--node") {
		t.Errorf("%v", err)
	}
}
