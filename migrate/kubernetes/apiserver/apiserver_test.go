package apiserver

import (
	"path/filepath"
	"strings"
	"testing"
)

// Where there is no way to the API server, the error names the flag.
func TestServerRefusals(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, file := range []string{"", filepath.Join(t.TempDir(), "none")} {
		if _, err := Config(file); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("%q: %v", file, err)
		}
	}
}
