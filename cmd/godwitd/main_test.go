package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
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
