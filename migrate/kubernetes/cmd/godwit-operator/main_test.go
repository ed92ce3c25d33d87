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

// The program's flags are its own: the framework that it uses has some of the same names.
func TestFlags(t *testing.T) {
	var s settings
	if err := s.flags().Parse([]string{"-kubeconfig", "k", "-namespace", "n", "-on-stop", "-health", ":1"}); err != nil {
		t.Fatal(err)
	}
	if s.kubeconfig != "k" || s.Namespace != "n" || !s.OnStop || s.Health != ":1" || s.Metrics != "" {
		t.Errorf("%+v", s)
	}
}
