package soak

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What is left on a node is listed, and a directory that cannot be read is no empty one.
func TestJournalsAreListedOrAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vms")
	if vms, err := journals(dir); len(vms) != 0 || err != nil {
		t.Errorf("before the first VM: %q, %v", vms, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "default", "vm01"), 0o700); err != nil {
		t.Fatal(err)
	}
	if vms, err := journals(dir); !slices.Equal(vms, []string{"default/vm01"}) || err != nil {
		t.Errorf("%q, %v", vms, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if vms, err := journals(dir); err == nil {
		t.Errorf("a namespace that is no directory: %q", vms)
	}
}
