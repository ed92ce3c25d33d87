package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
)

// A daemon whose node's VMMs would be root does not start, and says by which key and what to do.
func TestRootIsNotForVMMs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte("[vmm]\nfirst_user = 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), file)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "vmm.first_user") ||
		!strings.Contains(err.Error(), "vmm.allow_root") {
		t.Errorf("it says %v", err)
	}
}

// Only a node of Kubernetes asks its controllers for logins.
func TestWhoAsksForLogins(t *testing.T) {
	for name, test := range map[string]struct {
		remote     *record.Client
		kubernetes bool
		asks       bool
	}{
		"a node of Kubernetes":          {&record.Client{}, true, true},
		"a node of another controller":  {&record.Client{}, false, false},
		"a node that is its controller": {nil, true, false},
	} {
		d := &daemon{config: &config.Config{Kubernetes: test.kubernetes}, remote: test.remote}
		if got := d.logins() != nil; got != test.asks {
			t.Errorf("%s asks: %t", name, got)
		}
	}
}
